"""Partitioners and their parts.

ExecuTorch's partitioners are in modules of the same names; `graph_partitioner` has complete partitioners for a
backend. All run in linear time, change only `meta["delegation_tag"]` of a program (`duplicate_constant_node` also
adds placeholders), and never propose partitions that need each other's results.
"""
