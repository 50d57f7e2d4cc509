"""Its export reads inputs in every way."""
