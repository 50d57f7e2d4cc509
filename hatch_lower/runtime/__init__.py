"""What runs where a wheel is installed: find a model, check its files, choose a recipe, compile its plan, call it.

It imports torch, and no hatchling, no click, nothing that lowers or compiles.
"""
