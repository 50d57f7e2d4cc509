"""Packaged methods as models of a server: calls by names of tensors, and the open inference protocol."""
