"""For code that may run before torch is imported: this imports torch, if at all, when it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

# the part of torch that follows a model's own code step by step, and reads what that reads
TRACER = "/torch/_dynamo/variables/"
# names the folder for inductor's caches after the user
CACHE_FOLDER = "torch._inductor.runtime.cache_dir_utils"


def called_by_tracer(function: Function) -> Function:
    """Let dynamo call a function where it would follow its code; it cannot follow `sys._getframe`."""
    # this is what `torch._dynamo.assume_constant_result` does
    marked: Any = function
    marked._dynamo_marked_constant = True
    return function


def refused_by_tracer(function: Function) -> Function:
    """Let dynamo say that it cannot follow a function."""
    marked: Any = function
    marked._torchdynamo_disable = True
    return function


def file_readers(torch: Any) -> tuple[tuple[Any, str], tuple[Any, str]]:
    """Return where torch has its readers of files in C++: a class of archives, and a function of TorchScript."""
    return (torch._C, "PyTorchFileReader"), (torch._C, "import_ir_module")


def has_vnni() -> bool:
    """Return whether the processor sums products of bytes without saturation."""
    import torch

    return torch.cpu._is_vnni_supported()
