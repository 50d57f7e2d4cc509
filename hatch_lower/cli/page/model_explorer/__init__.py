"""An extension of Google's Model Explorer: `model-explorer X.whl --extensions=hatch_lower.cli.page.model_explorer`."""
