"""`watched.py FOLDERS COMMAND…`: run a command, and look at its memory and at what lies in folders all the while.

FOLDERS is a JSON object of names and paths. The command's output is passed on; then comes a line of JSON:

- `seconds`: that it took.
- `memory`: the most bytes of memory that is no page of a file, in all its processes together; `largest`: in one process
  of each name.
- `disk`: the most bytes that each folder took on disk; `left`: what it takes at the end.

A process that has its parent's command line has not begun its own yet: its memory is its parent's, and not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MEMORY_INTERVAL, DISK_INTERVAL = 0.004, 0.02
"""Seconds between two looks: to fill 100 MiB of new memory takes longer."""


def own_memory(process: int, parent: bytes = b"") -> Iterator[tuple[str, int]]:
    """Yield the name of a process, and of each below it, and its bytes that are no pages of files."""
    place = Path(f"/proc/{process}")
    try:
        command = (place / "cmdline").read_bytes()
        if command == parent:
            return
        rows = [line.split() for line in (place / "status").read_text().splitlines()]
        children = [child for each in (place / "task").glob("*/children") for child in each.read_text().split()]
    except OSError:  # it has just ended
        return
    yield rows[0][1], sum(int(row[1]) * 1024 for row in rows if row[0] in ("RssAnon:", "RssShmem:"))
    for child in children:
        yield from own_memory(int(child), command)


def disk_usage(folder: str | Path) -> int:
    """Return the bytes that the files below a folder take on disk."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # it has just been removed or renamed
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


folders = json.loads(sys.argv[1])
memory = 0
largest: dict[str, int] = {}
disk = dict.fromkeys(folders, 0)
ended = threading.Event()


def watch_memory(first: int) -> None:
    global memory
    while not ended.wait(MEMORY_INTERVAL):
        found = list(own_memory(first))
        memory = max(memory, sum(size for _, size in found))
        for name, size in found:
            largest[name] = max(largest.get(name, 0), size)


def watch_disk() -> None:
    while not ended.wait(DISK_INTERVAL):
        for name, folder in folders.items():
            disk[name] = max(disk[name], disk_usage(folder))


begin = time.perf_counter()
with subprocess.Popen(sys.argv[2:]) as process:
    watchers = [threading.Thread(target=watch_memory, args=(process.pid,)), threading.Thread(target=watch_disk)]
    for each in watchers:
        each.start()
    status = process.wait()
    seconds = time.perf_counter() - begin
    ended.set()
    for each in watchers:
        each.join()
left = {name: disk_usage(folder) for name, folder in folders.items()}
print(json.dumps({"seconds": seconds, "memory": memory, "largest": largest, "disk": disk, "left": left}))
sys.exit(status)
