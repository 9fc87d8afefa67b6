if __name__ != "lane_mlir.passes":
    raise ImportError(f"import lane_mlir.passes, not {__name__}")
