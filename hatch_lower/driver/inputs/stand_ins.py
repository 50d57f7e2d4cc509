"""Stand-ins for functions and classes that raise no audit event: a stand-in takes a note and calls the original.

The originals are native readers of safetensors and torch, the look-up of a distribution by name, the search for a
native library, and without the preloaded library `os.stat` and related functions. Reads of a file's times are found
here as well, because all code that looks at a path calls `os.stat`: a call counts if code outside of the standard
library makes the call, or calls a function of the standard library that returns times. `os.stat(path)` and
`os.path.getmtime(path)` count, `os.path.exists(path)` does not.

Reads of the clock and of the system's random numbers are noted, but are no inputs: the same value never returns. A
model that is made from a clock differs in each export, and stays the same while no export is needed. Most code that
asks for the time prints the time, so the only consequence is a line of the build.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, ModuleType
from typing import Any

from hatch_lower.driver.inputs.roots import OWN_PACKAGE, SITE_NAMES, standard_library
from hatch_lower.runtime.torch_private.unimported import file_readers, refused_by_tracer

Function = Callable[..., Any]
Note = Callable[[object], None]
Wrap = Callable[[Any], object]
MODULES_WITH_SAFE_OPEN = ("safetensors", "safetensors._safetensors_rust", "safetensors.torch", "safetensors.numpy")
# functions of the standard library that return times to their callers: of `os.path`, and methods of `Path`
GETTERS = frozenset({"getctime", "getmtime", "lstat", "stat"})
PATHS = "pathlib"  # the module whose other methods call `Path.stat` to look at a path
COMPARES_TIMES = "filecmp.py"
FROZEN = "<frozen "
LIBRARY = tuple(f"{folder}/" for folder in standard_library())
LOADERS_LIST = "/etc/ld.so.cache"  # of the libraries that the dynamic linker knows
CLOCKS = ("time", "time_ns", "localtime", "gmtime", "ctime")
RANDOM: tuple[tuple[ModuleType, str], ...] = ((os, "urandom"), (os, "getrandom"), (random, "_urandom"))
# modules that ask the system for random numbers on behalf of other code; NumPy's generators without a seed do the same
BETWEEN = frozenset({"random", "secrets", "uuid"})


class Exchanged:
    def __init__(self) -> None:
        self._originals: list[tuple[object, str, object]] = []

    def put(self, owner: object, name: str, wrap: Wrap) -> None:
        """Exchange an attribute for the result of `wrap`, if its owner has the attribute."""
        if hasattr(owner, name):
            self._originals.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, wrap(getattr(owner, name)))

    def restore(self) -> None:
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)


class NotingType(type):
    """The class of a stand-in for a native class without subclasses: a call notes the first argument."""

    _original: type
    _note: Note

    def __call__(cls, *arguments: object, **named: object) -> object:
        for path in (*arguments[:1], *(named[name] for name in ("filename", "name") if name in named)):
            cls._note(path)
        return cls._original(*arguments, **named)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls._original)

    def __getattr__(cls, name: str) -> object:
        return getattr(cls._original, name)


def noting_class(original: type, note: Note) -> type:
    attributes = {"_original": original, "_note": staticmethod(note), "__doc__": original.__doc__}
    return NotingType(original.__name__, (), {**attributes, "__module__": original.__module__})


def noting_function(original: Function, note: Note, position: int = 0) -> Function:
    """Return a stand-in for a function that is given a path at a position."""

    def noting(*arguments: Any, **named: Any) -> Any:
        for path in (*arguments[position : position + 1], *(named[name] for name in ("filename",) if name in named)):
            note(path)
        return original(*arguments, **named)

    return called_like(noting, original)


def called_like(stand_in: Function, original: Function) -> Function:
    # not `functools.wraps`: who asks for `__wrapped__` would get by the recorder
    stand_in.__name__ = stand_in.__qualname__ = original.__name__
    stand_in.__doc__ = original.__doc__
    return stand_in


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
    """Watch the C++ readers of torch; `torch.load` maps its file with a C++ reader."""
    torch = sys.modules["torch"]
    exchanged.put(torch, "from_file", lambda original: noting_function(original, note))
    exchanged.put(torch.UntypedStorage, "from_file", lambda original: staticmethod(noting_function(original, note)))
    reader, function = file_readers(torch)
    exchanged.put(*reader, lambda original: noting_class(original, note))
    exchanged.put(*function, lambda original: noting_function(original, note, 1))


def wrap_looks(exchanged: Exchanged, note: Note) -> None:
    for name in ("stat", "lstat", "access"):
        exchange(exchanged, name, lambda original: noting_function(original, note))


def exchange(exchanged: Exchanged, name: str, wrap: Wrap) -> None:
    """Exchange a function of `os`; the stand-in has the same abilities in `os.supports_fd` and related sets."""
    original = getattr(os, name)
    exchanged.put(os, name, wrap)
    for supported in (os.supports_dir_fd, os.supports_follow_symlinks, os.supports_fd, os.supports_effective_ids):
        if original in supported:
            supported.add(getattr(os, name))


def wrap_metadata(exchanged: Exchanged, note: Note) -> None:
    """Watch look-ups of distributions by name, in the method that `importlib.metadata.version` and related functions
    call.
    """
    from importlib.metadata import Distribution

    exchanged.put(Distribution, "from_name", lambda original: staticmethod(noting_function(original, note)))


def wrap_library_search(exchanged: Exchanged, note: Note, silent: Callable[[], AbstractContextManager[None]]) -> None:
    """Watch `ctypes.util.find_library`, by which CUDA's modules find libraries when torch imports them."""
    # the function starts a statically linked program, which cannot be watched, and which lists the contents of a file
    import ctypes.util

    def wrap(original: Function) -> Function:
        def finding(*arguments: Any, **named: Any) -> Any:
            note(LOADERS_LIST)
            with silent():
                return original(*arguments, **named)

        return called_like(finding, original)

    exchanged.put(ctypes.util, "_findSoname_ldconfig", wrap)


def wrap_forks(exchanged: Exchanged, note: Note) -> None:
    """Watch the only way in which `multiprocessing` starts processes without an audit event."""
    import _posixsubprocess

    exchanged.put(_posixsubprocess, "fork_exec", lambda original: noting_function(original, note))


def wrap_times(exchanged: Exchanged, note: Note, note_scan: Note) -> None:
    for name in ("stat", "lstat", "fstat"):
        exchange(exchanged, name, lambda original: timing_function(original, note, asks_for_times))
    # the entries of a scanned folder have a `stat` of their own, which raises no event
    exchange(exchanged, "scandir", lambda original: timing_function(original, note_scan, is_called_by_others))


def timing_function(original: Function, note: Note, counts: Callable[[FrameType], bool]) -> Function:
    def timing(*arguments: Any, **named: Any) -> Any:
        if counts(sys._getframe(1)):
            path = next(iter((*arguments, *(named[name] for name in ("path", "fd") if name in named))), None)
            path = "." if path is None else path
            folder = named.get("dir_fd")
            if folder is not None and isinstance(path, (str, bytes, os.PathLike)):
                path = os.path.join(f"/proc/self/fd/{folder}", os.fsdecode(path))
            note(path)
        return original(*arguments, **named)

    return called_like(timing, original)


def asks_for_times(frame: FrameType) -> bool:
    """Return whether a call from this frame gets a file's times for code that uses the times."""
    # the getters of the standard library call each other: who called the outermost counts
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_name in GETTERS and is_library(caller.f_code.co_filename):
        caller = caller.f_back
    if caller is None:
        return True
    file = caller.f_code.co_filename
    if not is_library(file):
        return is_called_by_others(caller)
    return PATHS not in file if caller is not frame else file.endswith(COMPARES_TIMES)


def is_called_by_others(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not is_library(file) and not file.startswith(f"{OWN_PACKAGE}/")


def is_library(file: str) -> bool:
    if file.startswith(FROZEN):
        return True
    root = next((root for root in LIBRARY if file.startswith(root)), None)
    return root is not None and file[len(root) :].partition("/")[0] not in SITE_NAMES


def wrap_clocks(exchanged: Exchanged, note: Callable[[FrameType, str], None]) -> None:
    for name in CLOCKS:
        exchanged.put(time, name, lambda original: noting(original, note))
    for owner, name in RANDOM:
        exchanged.put(owner, name, lambda original: noting(original, note, "random numbers of the system"))


def noting(original: Function, note: Callable[[FrameType, str], None], what: str = "") -> Function:
    """Return a stand-in that notes caller and purpose; a clock with an argument does not read the time."""

    def stand_in(*arguments: Any, **named: Any) -> Any:
        if what or not arguments:
            frame = sys._getframe(1)
            while frame.f_globals.get("__name__") in BETWEEN and frame.f_back is not None:
                frame = frame.f_back
            note(frame, what or f"time.{original.__name__}")
        return original(*arguments, **named)

    return called_like(refused_by_tracer(stand_in), original)  # dynamo reports that it cannot follow a clock
