"""Record the reads of `os.environ` and the code that reads: the mapping's class is exchanged for `NotingEnviron`.

A variable that the process sets before the first read is not an input. Code that copies or iterates over all variables
may use any variable.
"""

from __future__ import annotations

import getpass
import os
import sys
from _collections_abc import Mapping as PlainMapping
from collections.abc import Callable, Iterator, KeysView, Mapping
from types import CodeType, FrameType
from typing import Any

from hatch_lower.runtime.torch_private.unimported import CACHE_FOLDER, TRACER, called_by_tracer

# files whose functions stand in the call stack between the reading code and this module
BETWEEN = frozenset(
    {__file__, *(function.__code__.co_filename for function in (os.getenv, PlainMapping.get, getpass.getuser))}
)
# modules that every export with torch imports and that read more variables than they use → prefix of the used variables
USED: Mapping[str, str] = {
    "tqdm.utils": "TQDM_",
    "networkx.utils.backends": "NETWORKX_",
    CACHE_FOLDER: "TORCHINDUCTOR_",  # the user's name only names a folder for caches
}

# Packages that routinely read settings of their own: for caches, devices, threads, logs, credentials
SETTLED = frozenset(
    {
        *("", "__main__", "_distutils_hack", "absl", "accelerate", "aiohttp", "azure", "bitsandbytes", "boto3"),
        *("botocore", "certifi", "click", "colorama", "coverage", "cv2", "dask", "datasets", "diffusers"),
        *("distributed", "einops", "executorch", "filelock", "flash_attn", "fsspec", "functorch", "google"),
        *("hatch_lower", "hatchling", "hf_xet", "httpx", "huggingface_hub", "IPython", "jax", "joblib"),
        *("lightning", "lightning_fabric", "loguru", "matplotlib", "networkx", "numba", "numexpr", "numpy"),
        *("onnx", "onnx_ir", "onnxruntime", "onnxscript", "openvino", "optimum", "packaging", "pandas", "peft"),
        *("PIL", "pip", "pkg_resources", "platformdirs", "pluggy", "psutil", "py", "pyarrow", "pytest"),
        *("pytorch_lightning", "ray", "regex", "requests", "rich", "s3fs", "safetensors", "scipy"),
        *("sentence_transformers", "sentencepiece", "setuptools", "sklearn", "sympy", "tensorflow"),
        *("threadpoolctl", "timm", "tokenizers", "torch", "torchao", "torchaudio", "torchgen", "torchmetrics"),
        *("torchvision", "tqdm", "transformers", "triton", "urllib3", "wandb", "xformers", "yaml"),
    }
)


class EnvironmentReads:
    """The recorded reads of the environment; `written` is called for each variable that the process sets or removes."""

    __slots__ = ("_copying", "_is_own", "_plain", "_written", "active", "deciding", "globs", "names", "own_writes")

    def __init__(self, is_own: Callable[[str], bool], written: Callable[[str], None]) -> None:
        self._is_own = is_own
        self._written = written
        self._plain: Any = None
        self._copying: set[tuple[CodeType, int]] = set()
        self.active = False
        # glob whose variables were all read → whether the project's own code read them
        self.globs: dict[str, bool] = {}
        self.names: dict[str, bool] = {}  # name → whether the project's own code read the variable
        self.deciding: set[str] = set()  # names that may shape the model: read by code outside of `SETTLED`
        self.own_writes: set[str] = set()  # names that the process set or removed before the first read

    def __deepcopy__(self, memo: object) -> EnvironmentReads:
        return self  # a deep copy of `os.environ` is a copy of the variables

    def start(self) -> None:
        self._plain = type(os.environ)
        self.active = True
        for mapping in mappings():
            vars(mapping)["_reads"] = self
            mapping.__class__ = NotingEnviron

    def stop(self) -> None:
        self.active = False
        for mapping in mappings():
            mapping.__class__ = self._plain
            vars(mapping).pop("_reads", None)

    @called_by_tracer
    def copying(self) -> None:
        # the names are read; if the calling instruction copies the mapping, reads of each value follow
        frame = sys._getframe(2)
        self._copying.add((frame.f_code, frame.f_lasti))
        self.every()

    @called_by_tracer
    def every(self) -> None:
        frame = asking(sys._getframe(2))
        if self.active and not module_of(frame).startswith("hatch_lower."):  # hatch-lower only restores variables
            own = self._asks(frame)
            glob = "*" if own else f"{used_by(frame)}*"
            self.globs[glob] = self.globs.get(glob, False) or own

    @called_by_tracer
    def one(self, name: object) -> None:
        caller = sys._getframe(2)
        view = caller.f_code.co_name == "__iter__" and caller.f_code.co_filename in BETWEEN
        name = os.fsdecode(name) if isinstance(name, (str, bytes)) else ""
        if not self.active or not name or view or name in self.own_writes:
            return
        if (caller.f_code, caller.f_lasti) not in self._copying:
            frame = asking(caller)
            own = self._asks(frame)
            if own or name.startswith(used_by(frame)):
                self.names[name] = self.names.get(name, False) or own
                if own or calling_package(frame) not in SETTLED:
                    self.deciding.add(name)

    @called_by_tracer
    def write(self, name: object) -> None:
        name = os.fsdecode(name) if isinstance(name, (str, bytes)) else ""
        if name and name not in self.names and name not in self.own_writes:
            self.own_writes.add(name)
            self._written(name)

    def _asks(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        return self._is_own(file) or TRACER in file


class NotingEnviron(os._Environ):  # type: ignore[type-arg]  # its generic form is no class before Python 3.12
    _reads: EnvironmentReads

    def __getitem__(self, key: object) -> object:
        self._reads.one(key)
        return super().__getitem__(key)

    def __setitem__(self, key: object, value: object) -> None:
        self._reads.write(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: object) -> None:
        self._reads.write(key)
        super().__delitem__(key)

    def __iter__(self) -> Iterator[object]:
        self._reads.every()
        return super().__iter__()

    def __len__(self) -> int:
        self._reads.every()
        return super().__len__()

    def __repr__(self) -> str:
        self._reads.every()
        return super().__repr__()

    def keys(self) -> KeysView[object]:
        # `dict(os.environ)` reads the names first, then every value
        self._reads.copying()
        return super().keys()

    def copy(self) -> dict[object, object]:
        self._reads.every()
        return dict(super().items())


def mappings() -> tuple[Any, ...]:
    return (os.environ, os.environb) if os.supports_bytes_environ else (os.environ,)


def asking(frame: FrameType) -> FrameType:
    while frame.f_code.co_filename in BETWEEN and frame.f_back is not None:
        frame = frame.f_back
    return frame


def calling_package(frame: FrameType) -> str:
    """Return the top-level package of the code that read the variable, directly or through the standard library."""
    asked: FrameType | None = frame
    while asked is not None:
        package = module_of(asked).partition(".")[0]
        if package not in sys.stdlib_module_names or package == "__main__":
            return package
        asked = asked.f_back
    return ""


def used_by(frame: FrameType) -> str:
    return USED.get(module_of(frame), "")


def module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
