"""The C library's own functions, which `ctypes` can reach past the preloaded library.

The preloaded library stands before functions of the C library where a program finds them by name among all that is
loaded. Who asks the C library itself gets the function behind.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

NAME = "libc.so.6"
NEVER_SEEN = frozenset({"syscall", "environ", "_environ", "__environ", "dlsym", "dlvsym"})
"""What the preloaded library does not stand before, and what reads can be made with."""


class CLibrary:
    """Tells which functions are called without a note.

    Args:
        preloaded: whether there is the preloaded library.
    """

    def __init__(self, preloaded: bool) -> None:
        self._preloaded = preloaded
        self._everything = handle_of(None)
        self._own = handle_of(NAME) or self._everything
        self._find: Callable[[int, bytes], int | None] = lambda handle, name: None
        if self._everything:
            # not `_ctypes.dlsym`, which raises an audit event
            self._find = ctypes.PyDLL(None).dlsym
            self._find.argtypes, self._find.restype = (ctypes.c_void_p, ctypes.c_char_p), ctypes.c_void_p

    def is_unseen(self, library: Any, name: Any) -> bool:
        """Return whether calls of what was asked for leave no note, though they may read something.

        Args:
            library: which was asked, or its handle.
            name: of a function or variable.
        """
        asked = name.encode() if isinstance(name, str) else name
        handle = library if isinstance(library, int) else getattr(library, "_handle", None)
        if not isinstance(asked, bytes) or not handle or asked.startswith((b"Py", b"_Py")):
            return False
        found, own = self._find(handle, asked), self._find(self._own, asked)
        if found is None or found != own:
            return False
        return not self._preloaded or asked.decode() in NEVER_SEEN or self._find(self._everything, asked) != own


def handle_of(name: str | None) -> int:
    """Return the handle of a library, or of everything that is loaded; 0 where there is none."""
    try:
        return int(ctypes.PyDLL(name)._handle) if sys.platform != "win32" else 0
    except OSError:
        return 0
