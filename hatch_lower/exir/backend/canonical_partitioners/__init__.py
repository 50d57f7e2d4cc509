"""Partitioners and their parts: which operations and constants of a program a backend takes.

ExecuTorch's are in modules of its names; `graph_partitioner` has those to name a backend with. Everything here is
linear in the graph, changes nothing of a program but `meta["delegation_tag"]` (only `duplicate_constant_node` adds
placeholders), and never proposes partitions that need each other's results.
"""
