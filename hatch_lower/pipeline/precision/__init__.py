"""The conversion of captured models to the precisions of recipes, before lowering."""
