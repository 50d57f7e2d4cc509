"""Which members of two wheels belong together, and which differences follow from others."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hatch_lower.build.diff.archive import Wheel, map_member
from hatch_lower.build.diff.difference import LABEL, Known
from hatch_lower.build.diff.tensors import header_of
from hatch_lower.canonical import recorded_digest
from hatch_lower.format.constants import CONSTANTS_FILES

DOCUMENT_LIMIT = 1 << 26  # bytes of a document that is read whole
FOLDER = "/_lowered/"
MANIFEST = "/manifest.json"
LEAST_SIZE = 256  # bytes: a smaller number in a document is not taken for the size of a member
# Of a tensor, or of the contents of a file that is called by it
DIGEST = re.compile(rb'(?:"key": ?"|/(?:sha256_)?)([0-9a-f]{64})["._]')

IN_NAME = re.compile(r"(?=([0-9a-f]{64}))")


def pair_members(first: Wheel, second: Wheel) -> tuple[dict[str, str], dict[str, str]]:
    """Return the members of both wheels, and the digests of members and tensors that have other contents."""
    # A delegate is called by the digest of its contents, so one that differs has two names, as a tensor has; plan and
    # manifest say at the same place which it is. Metadata folders are called by the version, which may differ too.
    pairs = {name: name for name in first.members if name in second.members}
    folders = [metadata_folder(wheel) for wheel in (first, second)]
    lone = {name: f"{folders[1]}{name.removeprefix(folders[0])}" for name in first.members if name not in pairs}
    pairs |= {name: right for name, right in lone.items() if name.startswith(folders[0]) and right in second.members}
    digests: dict[str, str] = {}
    documents = [name for name in sorted(pairs) if FOLDER in name and name.endswith(".json")]
    for name in sorted(documents, key=lambda name: name.endswith(MANIFEST)):  # whose lists are sorted by digest
        digests = digests_of(first, second, name, name) | digests
    called: dict[str, list[str]] = {}
    for name in lone:
        for digest in IN_NAME.findall(name):
            called.setdefault(digest, []).append(name)
    for left, right in digests.items():
        for name in called.get(left, ()):
            if name.replace(left, right) in second.members:
                pairs[name] = name.replace(left, right)
                digests = digests_of(first, second, name, pairs[name]) | digests
    return pairs, digests


def metadata_folder(wheel: Wheel) -> str:
    folders = {f"{name.partition('/')[0]}/" for name in wheel.members if ".dist-info/" in name}
    return folders.pop() if len(folders) == 1 else "\0"


def digests_of(first: Wheel, second: Wheel, name: str, counterpart: str) -> dict[str, str]:
    """Return the digests that two documents, or two delegates that begin with one, have at the same places."""
    if first.digests[name] == second.digests[counterpart]:
        return {}
    ours, theirs = (DIGEST.findall(head_of(wheel, member)) for wheel, member in ((first, name), (second, counterpart)))
    pairs = zip(ours[::-1], theirs[::-1], strict=False)  # of a digest that is there twice the first place counts
    return {left.decode(): right.decode() for left, right in pairs if left != right}


def head_of(wheel: Wheel, name: str) -> bytes:
    data = map_member(wheel, name)
    if name.endswith(".json"):
        return bytes(data) if len(data) <= DOCUMENT_LIMIT else b""
    head = header_of(data)
    return b"" if head is None else bytes(data[head.begin : head.end])


def known_of(
    first: Wheel, second: Wheel, pairs: Mapping[str, str], digests: Mapping[str, str], places: Mapping[str, str]
) -> Known:
    different = {name: right for name, right in pairs.items() if first.digests[name] != second.digests[right]}
    digests = {**digests, **{first.digests[name]: second.digests[right] for name, right in different.items()}}
    labels = {left: f"{LABEL}{number}" for number, left in enumerate(digests)}
    sizes = [(first.members[name].file_size, second.members[right].file_size) for name, right in different.items()]
    sizes = [pair for pair in sizes if pair[0] != pair[1] and min(pair) >= LEAST_SIZE]
    names: dict[str, str] = {}
    stored: set[str] = set()
    for name in sorted(different, key=lambda name: (not name.endswith(".json"), name)):
        if FOLDER in name:
            document = parsed(head_of(first, name))
            names = dict(constant_names(document)) | names
            if name.endswith(CONSTANTS_FILES) and isinstance(document, dict):
                stored |= document.keys()
    return Known(
        places,
        (labels, {right: labels[left] for left, right in digests.items()}),
        (frozenset(pair[0] for pair in sizes), frozenset(pair[1] for pair in sizes)),
        names,
        frozenset(stored),
    )


def parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def constant_names(document: Any) -> Iterator[tuple[str, str]]:
    """Yield the key of each constant's storage, and the constant's name, of a plan; nothing of another document."""
    try:
        for name, constant in sorted(document["constants"].items(), reverse=True):
            yield str(document["storages"][constant["storage"]]["key"]), name
    except (AttributeError, IndexError, KeyError, TypeError):
        return


def record_rows(record: str, text: str, wheel: Wheel, pairs: Mapping[str, str]) -> list[str]:
    """Return the rows of a RECORD that say something else than what the wheel has, and only the names of the rest."""
    # rows of members that `pairs` does not name are left out
    rows = []
    for row in csv.reader(io.StringIO(text, newline="")):
        name = row[0] if row else ""
        if name in wheel.members and row[1:] == ([""] * 2 if name == record else row_of(wheel, name)):
            if name in pairs:
                rows.append(f"{pairs[name]},as it is")
        else:
            rows.append(",".join(row))
    return rows


def row_of(wheel: Wheel, name: str) -> list[str]:
    return [recorded_digest(wheel.digests[name]), str(wheel.members[name].file_size)]
