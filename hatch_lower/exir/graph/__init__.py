"""Tools for FX graphs: canonical form, copies, and the contents of tensors."""
