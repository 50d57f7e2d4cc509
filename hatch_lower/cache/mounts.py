"""Whether the times of a file say that it was not written: it depends on the file system."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

TABLE = Path("/proc/self/mountinfo")
OF_THIS_SYSTEM = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)
"""File systems whose times come from the clock of this machine."""


class Times(Enum):
    """What the times of files of one device are."""

    OWN = "by the clock of this machine"
    OTHER = "by another clock: of a server, or of a system that nothing is known of"
    FIXED = "of an image that is mounted read-only: another image may have the same times"


def times_of_devices(table: Path = TABLE) -> dict[int, Times] | None:
    """Return what the times are of each mounted device, by its number; `None` where the system has no such table."""
    try:
        lines = table.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    found = {}
    for line in lines:
        place, _, system = line.partition(" - ")
        major, _, minor = place.split()[2].partition(":")
        kind, _, options = system.split(" ", 2)
        fixed = "ro" in options.split(",")
        own = Times.OWN if kind in OF_THIS_SYSTEM else Times.OTHER
        found[os.makedev(int(major), int(minor))] = Times.FIXED if fixed else own
    return found
