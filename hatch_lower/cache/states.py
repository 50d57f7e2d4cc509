"""What `stat` says of a file, so that it can be seen whether it is still the same one."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple


class State(NamedTuple):
    """Device, inode, mode, size, and the times of modification and of change in nanoseconds."""

    device: int
    inode: int
    mode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, found: os.stat_result) -> State:
        """Return what `os.stat` has said."""
        return cls(found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @classmethod
    def read(cls, text: str) -> State:
        """Return what `text` wrote, or the preloaded library: hexadecimal numbers, each with a comma behind it."""
        return cls(*(int(number, 16) for number in text.removesuffix(",").split(",")))

    def text(self) -> str:
        """Return the form in which the preloaded library writes it."""
        return "".join(f"{number:x}," for number in self)

    def kind(self) -> str:
        """Return `file 123`, with its size, or `folder`, or `other`."""
        if stat.S_ISDIR(self.mode):
            return "folder"
        return f"file {self.size}" if stat.S_ISREG(self.mode) else "other"
