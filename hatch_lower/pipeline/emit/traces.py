"""Find traces of the build machine in a blob: a path, the machine's name, the process id, an address."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from hatch_lower.canonical import canonical_json
from hatch_lower.pipeline.emit.emit import EmittedProgram

SHORTEST = 5  # characters of a name, or digits of a number, that rarely occur by chance
BEGIN, END = rb"(?<![0-9A-Za-z.])", rb"(?![0-9A-Za-z.])"
ADDRESS = re.compile(rb" at 0x[0-9a-f]{8,16}>")


def machine_words(root: Path) -> dict[str, bytes]:
    folders = {
        "the project's folder": str(root),
        "the temporary folder": tempfile.gettempdir(),
        "the home folder": os.path.expanduser("~"),
    }
    words = {name: folder.rstrip(os.sep) + os.sep for name, folder in folders.items() if folder.count(os.sep) > 1}
    words |= {"the machine's name": platform.node(), "the id of the process": str(os.getpid())}
    return {name: os.fsencode(word) for name, word in words.items() if len(word) >= SHORTEST}


def trace_in(data: bytes, words: Mapping[str, bytes]) -> str:
    for name, word in words.items():
        pattern = BEGIN + re.escape(word) + (b"" if word.endswith(os.fsencode(os.sep)) else END)
        # searching the plain word first is much faster than a regular expression, and is enough for most blobs
        if word in data and re.search(pattern, data):
            return f"{name}, `{os.fsdecode(word)}`"
    address = ADDRESS.search(data)
    return f"an address in memory, `{address[0].decode().strip()}`" if address else ""


def traces_of(emitted: EmittedProgram, words: Mapping[str, bytes]) -> Iterator[str]:
    for entry in emitted.plan.delegates:
        blob = next(data for digest, data in emitted.blobs.items() if digest in entry.file)
        for what, data in (("blob", blob.data), ("facts", canonical_json(entry.info))):
            if found := trace_in(data, words):
                yield f"the {what} of the backend `{entry.backend}` hold{'s' * (what == 'blob')} {found}"
