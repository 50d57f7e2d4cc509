"""The methods of a model, from exported to lowered programs."""

from hatch_lower.exir.program._program import EdgeProgramManager, LoweredProgram, to_edge, to_edge_transform_and_lower

__all__ = ["EdgeProgramManager", "LoweredProgram", "to_edge", "to_edge_transform_and_lower"]
