"""The runtime, for machines with an installed wheel: find, check, choose, compile and call a model.

Modules of this room import torch if needed, but never hatchling, click, or modules that lower or compile.
"""
