"""FX graphs without opinions: their canonical form, copies, and the contents of their tensors."""
