"""Imported for what it does: it registers the operators `quantized_decomposed`."""
