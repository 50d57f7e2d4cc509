"""Private interfaces for code that may run before torch is imported, and the torch versions with which this folder's
private names were tried. Functions import torch only when called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
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


def find_part(module: Any, name: str) -> Any:
    """Return a part of a module of torch by the part's dotted name; `None` if this version lacks the part."""
    return getattr(module, name.rpartition(".")[2], None)


TABLE = Path(__file__).with_name("tried.json")
ABSENT = " (absent)"  # after a version that was tried without the name


def tried_versions() -> list[str]:
    """Return the minor versions with which every private name was tried, oldest first."""
    tried = [{each.removesuffix(ABSENT) for each in versions} for versions in json.loads(TABLE.read_bytes()).values()]
    return sorted(set.intersection(*tried), key=numbers)


def why_untried(version: str) -> str:
    """Return a message if a torch version is newer than all tried versions, or an empty string."""
    tried = tried_versions()
    if numbers(version) <= numbers(tried[-1]):
        return ""
    return f"torch {version} is newer than all versions that hatch-lower was tried with ({', '.join(tried)})"


def numbers(version: str) -> tuple[int, ...]:
    """Return the major and minor number of a version."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
