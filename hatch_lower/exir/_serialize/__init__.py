"""The named data store, under ExecuTorch's module path."""
