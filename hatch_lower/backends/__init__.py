"""The backends that come with hatch-lower, and `testing`, the kit for whoever writes one.

Each has a compile half and a run half, which entry points name. A run half imports `runtime` and `format` alone; only
the engine's own library does the engine's work. What the engines share is in four modules: `engine_partitioner` (what
is taken), `partition_copy` (what the engine's importer gets), `instructions` (what the engine's program computes), and
`call_map` (how a call reaches the engine and back).
"""
