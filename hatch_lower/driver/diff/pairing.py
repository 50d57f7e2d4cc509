"""Pairs of members of two wheels, and differences that follow from other differences."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hatch_lower.canonical import recorded_digest
from hatch_lower.driver.diff.archive import Wheel, map_member
from hatch_lower.driver.diff.difference import LABEL, Known
from hatch_lower.driver.diff.tensors import header_of
from hatch_lower.format.constants import CONSTANTS_FILES

DOCUMENT_LIMIT = 1 << 26  # bytes of a document that is read whole
FOLDER = "/_lowered/"
MANIFEST = "/manifest.json"
LEAST_SIZE = 256  # bytes: a smaller number in a document does not count as the size of a member
# The digest of a tensor, or of a file whose name is its digest
DIGEST = re.compile(rb'(?:"key": ?"|/(?:sha256_)?)([0-9a-f]{64})["._]')

IN_NAME = re.compile(r"(?=([0-9a-f]{64}))")


def pair_members(first: Wheel, second: Wheel) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names of corresponding members, and the digests of corresponding members and tensors that differ."""
    # A delegate's name is its digest, so a changed delegate has another name; plan and manifest have both names at the
    # same place. The name of a metadata folder has the version.
    pairs = {name: name for name in first.members if name in second.members}
    folders = [metadata_folder(wheel) for wheel in (first, second)]
    lone = {name: f"{folders[1]}{name.removeprefix(folders[0])}" for name in first.members if name not in pairs}
    pairs |= {name: right for name, right in lone.items() if name.startswith(folders[0]) and right in second.members}
    digests: dict[str, str] = {}
    documents = [name for name in sorted(pairs) if FOLDER in name and name.endswith(".json")]
    for name in sorted(documents, key=lambda name: name.endswith(MANIFEST)):  # its lists are sorted by digest
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
    """Return the digests at the same places of two documents, or of the documents at the beginning of two delegates."""
    if first.digests[name] == second.digests[counterpart]:
        return {}
    ours, theirs = (DIGEST.findall(head_of(wheel, member)) for wheel, member in ((first, name), (second, counterpart)))
    pairs = zip(ours[::-1], theirs[::-1], strict=False)  # the first place of a repeated digest counts
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
    """Yield storage key and name of each constant of a plan; other documents have no constants."""
    try:
        for name, constant in sorted(document["constants"].items(), reverse=True):
            yield str(document["storages"][constant["storage"]]["key"]), name
    except (AttributeError, IndexError, KeyError, TypeError):
        return


def record_rows(record: str, data: memoryview, wheel: Wheel, pairs: Mapping[str, str]) -> tuple[list[str], bool]:
    """Return the members that a RECORD lists, by their names in the first wheel, and whether the RECORD is right."""
    rows = [row for row in csv.reader(io.StringIO(bytes(data).decode("utf-8", "replace"), newline="")) if row]
    right = all(
        row[0] in wheel.members and row[1:] == (["", ""] if row[0] == record else row_of(wheel, row[0])) for row in rows
    )
    return sorted(pairs[row[0]] for row in rows if row[0] in pairs), right


def row_of(wheel: Wheel, name: str) -> list[str]:
    return [recorded_digest(wheel.digests[name]), str(wheel.members[name].file_size)]
