"""Entry points that cannot be lowered; a test puts the name of one into pyproject.toml."""
