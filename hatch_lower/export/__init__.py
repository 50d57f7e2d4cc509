"""The export side of a build: find what a project declares, capture it with `torch.export`, check what was made of it."""
