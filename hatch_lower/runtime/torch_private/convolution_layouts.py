"""The layout in memory of a convolution's result on a GPU, by the rule of cuDNN's caller in libtorch.

Source: `cudnn_conv_suggest_memory_format` in ATen's `ConvUtils.h`. A torch without cuDNN answers with another layout.
"""

from __future__ import annotations

import torch
from torch._prims_common import suggest_memory_format


def layout_on_gpu(image: torch.Tensor, weight: torch.Tensor, backend: object = None) -> torch.memory_format:
    """Return the layout of a result; the kind of kernel does not matter."""
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = layouts.get(weight.dim())
    if layout is None or torch.float64 in (image.dtype, weight.dtype):
        return torch.contiguous_format
    is_last = layout in (suggest_memory_format(image), suggest_memory_format(weight))
    return layout if is_last else torch.contiguous_format
