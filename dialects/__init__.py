if __name__ != "lane_mlir.dialects":
    raise ImportError(f"import lane_mlir.dialects, not {__name__}")
