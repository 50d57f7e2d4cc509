"""The backends that come with hatch-lower, and `testing`, the kit for authors of backends.

Each has a compile half and a run half, which entry points name. A run half imports only `runtime` and `format`; only
the engine's own library does the engine's work. The engines share five modules: `engine_partitioner` (choice of
nodes), `partition_copy` (the graph for the engine's importer), `instructions` (operations of the engine's program),
`call_map` (from a call to the engine and back), and `interpolation` (places as eager
computes them).
"""
