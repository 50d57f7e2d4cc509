"""Private interfaces for code that may run before torch is imported; functions import torch only when called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

# the part of torch that executes a model's code symbolically, and so reads files and variables on behalf of the model
TRACER = "/torch/_dynamo/variables/"
# the module that names the folder of inductor's caches after the user
CACHE_FOLDER = "torch._inductor.runtime.cache_dir_utils"


def called_by_tracer(function: Function) -> Function:
    """Mark a function that dynamo calls instead of tracing; dynamo cannot trace `sys._getframe`."""
    # equivalent to `torch._dynamo.assume_constant_result`
    marked: Any = function
    marked._dynamo_marked_constant = True
    return function


def refused_by_tracer(function: Function) -> Function:
    """Mark a function that dynamo refuses to trace."""
    marked: Any = function
    marked._torchdynamo_disable = True
    return function


def file_readers(torch: Any) -> tuple[tuple[Any, str], tuple[Any, str]]:
    """Return the places of torch's C++ readers of files: a class for archives, and a function of TorchScript."""
    return (torch._C, "PyTorchFileReader"), (torch._C, "import_ir_module")


def has_vnni() -> bool:
    """Return whether the processor can sum products of bytes without saturation."""
    import torch

    return torch.cpu._is_vnni_supported()
