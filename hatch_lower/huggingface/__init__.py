"""Models of transformers, declared without code for inputs and shapes: the value of an entry point is
`hatch_lower.huggingface.model(module)`, for generation `hatch_lower.huggingface.generator(module)`.
"""

from hatch_lower.huggingface.declare import as_pretrained, generator, model

__all__ = ["as_pretrained", "generator", "model"]
