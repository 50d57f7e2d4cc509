"""The HTML page about lowered models, and graphs of methods for other viewers."""
