"""Two models, so that they can be lowered one after the other or side by side."""
