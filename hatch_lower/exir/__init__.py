"""The edge program and its lowering, under the names and module paths of ExecuTorch's `exir`.

A backend, a partitioner or a pass that was written for ExecuTorch moves here when `executorch.exir` is replaced by
`hatch_lower.exir`. `graph` and `lowering` are our own. Files and caches of a build are none of its business.
"""
