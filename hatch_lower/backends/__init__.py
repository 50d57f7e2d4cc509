"""The backends that come with hatch-lower, and `testing`, the kit for whoever writes one.

Each has a compile half and a run half, which entry points name. A run half imports `runtime` and `format` alone; only
the engine's own library does the engine's work.
"""
