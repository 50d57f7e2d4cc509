"""The `executorch` backend: a partition becomes a `.pte` by ExecuTorch's own pipeline, with XNNPACK's kernels."""
