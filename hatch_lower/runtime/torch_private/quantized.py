"""The operators `quantized_decomposed` of PT2E-quantized models, registered by a private module of torch."""

import torch
import torch.ao.quantization.fx._decomposed

quantized_decomposed = torch.ops.quantized_decomposed
