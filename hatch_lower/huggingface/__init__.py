"""Models of transformers, declared without code for inputs and shapes: the value of an entry point is
`hatch_lower.huggingface.model(module)`.
"""

from hatch_lower.huggingface.declare import model

__all__ = ["model"]
