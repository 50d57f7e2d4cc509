"""The export side of a build: find what a project declares, capture it, and check what was made of it."""
