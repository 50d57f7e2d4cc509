"""Readers of files that raise no audit event: `safetensors`, torch's native ones, and looks at what is there.

They are exchanged for ones that take a note of the path and then do the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

Note = Callable[[Any], None]
MODULES_WITH_SAFE_OPEN = ("safetensors", "safetensors._safetensors_rust", "safetensors.torch", "safetensors.numpy")


class Exchanged:
    """Attributes that were exchanged, to be put back."""

    __slots__ = ("_originals",)

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Exchange an attribute for what `wrap` makes of it, if its owner has it."""
        if hasattr(owner, name):
            self._originals.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, wrap(getattr(owner, name)))

    def restore(self) -> None:
        """Put everything back."""
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is None:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)


class NotingType(type):
    """The class of a stand-in for a native class that cannot be derived from: calling it notes the first argument."""

    _original: type
    _note: Note

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        """Return an object of the native class itself."""
        for path in (*arguments[:1], *(named[name] for name in ("filename", "name") if name in named)):
            cls._note(path)
        return cls._original(*arguments, **named)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._original)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._original, name)


def noting_class(original: type, note: Note) -> type:
    """Return a stand-in for a native class."""
    attributes = {"_original": original, "_note": staticmethod(note), "__doc__": original.__doc__}
    return NotingType(original.__name__, (), {**attributes, "__module__": original.__module__})


def noting_function(original: Any, note: Note, position: int = 0) -> Any:
    """Return a stand-in for a function that is given a path at a position."""

    def noting(*arguments: Any, **named: Any) -> Any:
        for path in (*arguments[position : position + 1], *(named[name] for name in ("filename",) if name in named)):
            note(path)
        return original(*arguments, **named)

    noting.__name__ = noting.__qualname__ = original.__name__
    noting.__doc__ = original.__doc__
    return noting


def wrap_safetensors(exchanged: Exchanged, note: Note) -> None:
    """Watch `safe_open`, which maps its file in Rust; every other reader of safetensors opens files through Python."""
    try:
        import safetensors  # noqa: F401  # before the model's code takes the native class from it
    except ImportError:
        return
    for module in MODULES_WITH_SAFE_OPEN:
        if module in sys.modules:
            for name in ("safe_open", "_safe_open_handle"):
                exchanged.put(sys.modules[module], name, lambda original: noting_class(original, note))


def wrap_torch(exchanged: Exchanged, note: Note) -> None:
    """Watch the readers that torch has in C++; `torch.load` maps its file with one of them."""
    torch: Any = sys.modules["torch"]
    exchanged.put(torch, "from_file", lambda original: noting_function(original, note))
    exchanged.put(torch.UntypedStorage, "from_file", lambda original: staticmethod(noting_function(original, note)))
    exchanged.put(torch._C, "PyTorchFileReader", lambda original: noting_class(original, note))
    exchanged.put(torch._C, "import_ir_module", lambda original: noting_function(original, note, 1))


def wrap_looks(exchanged: Exchanged, note: Note) -> None:
    """Watch `os.stat`, `os.lstat`, `os.access` and all that is built on them, but not what the import system asks."""
    for name in ("stat", "lstat", "access"):
        exchange(exchanged, name, lambda each: noting_function(each, note))


def exchange(exchanged: Exchanged, name: str, wrap: Callable[[Any], Any]) -> None:
    """Exchange a function of `os`; what it can do, as `os.supports_fd` and its kin say, its stand-in can do."""
    original = getattr(os, name)
    exchanged.put(os, name, wrap)
    for supported in (os.supports_dir_fd, os.supports_follow_symlinks, os.supports_fd, os.supports_effective_ids):
        if original in supported:
            supported.add(getattr(os, name))


def wrap_metadata(exchanged: Exchanged, note: Note) -> None:
    """Watch which distributions are asked for by name; `importlib.metadata.version` and its kin do it in one place."""
    from importlib.metadata import Distribution

    exchanged.put(Distribution, "from_name", lambda original: staticmethod(noting_function(original, note)))


def wrap_forks(exchanged: Exchanged, note: Callable[[Any], None]) -> None:
    """Watch the one way in which `multiprocessing` starts processes without an audit event."""
    try:
        import _posixsubprocess
    except ImportError:
        return
    exchanged.put(_posixsubprocess, "fork_exec", lambda original: noting_function(original, note))
