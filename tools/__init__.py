if __name__ != "lane_mlir.tools":
    raise ImportError(f"import lane_mlir.tools, not {__name__}")
