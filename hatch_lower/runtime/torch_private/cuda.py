"""Facts about torch's CUDA and the GPUs of this machine, for programs that run on a GPU; GPUs to compile for are in
`gpu_stand_ins`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from hatch_lower.runtime.torch_private.operators import OpOverload, dispatcher_name


def cuda_version() -> str:
    """Return the version of CUDA that torch was compiled with, such as `13.0`; empty for a torch without CUDA."""
    return torch.version.cuda or ""


def count_gpus() -> tuple[int, str]:
    """Return the number of GPUs that torch can use, and if there are none, torch's reason, possibly empty."""
    # asks the driver without initializing CUDA; a driver older than torch's CUDA is a warning of torch
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return count, "" if count else " ".join(str(warning.message) for warning in caught)


def current_gpu() -> int:
    """Return the index of torch's current GPU. Initializes CUDA."""
    return torch.cuda.current_device()


def capability_of(index: int) -> tuple[int, int]:
    """Return the compute capability of a GPU: `(8, 0)` is `sm_80`. Initializes CUDA."""
    return torch.cuda.get_device_capability(index)


def name_of(index: int) -> str:
    return torch.cuda.get_device_name(index)


def synchronize(device: str) -> None:
    """Wait for all work on a device; no work waits on the CPU."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def fork_test() -> Callable[[], bool]:
    """Return a function that is true in a child process that was forked after its parent initialized CUDA."""
    test: Callable[[], bool] = torch.cuda._is_in_bad_fork
    return test


def has_gpu_kernel(operator: OpOverload[..., object], device_type: str) -> bool:
    """Return whether the dispatcher has a kernel of an operator for tensors on a type of device."""
    key = torch._C._dispatch_key_for_device(device_type)
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(dispatcher_name(operator), key))
