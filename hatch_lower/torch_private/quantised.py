"""The operators `quantized_decomposed`, of models that PT2E quantised: a private module of torch registers them."""

import torch
import torch.ao.quantization.fx._decomposed

__all__ = ["quantized_decomposed"]

quantized_decomposed = torch.ops.quantized_decomposed
