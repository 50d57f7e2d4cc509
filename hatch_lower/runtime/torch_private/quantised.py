"""The operators `quantized_decomposed`, of models that PT2E quantised: a private module of torch registers them."""

import torch
import torch.ao.quantization.fx._decomposed

quantized_decomposed = torch.ops.quantized_decomposed
