"""Which members of two wheels belong together, and which differences follow from others."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hatch_lower.build.diff.archive import Wheel, map_member
from hatch_lower.build.diff.difference import Known
from hatch_lower.build.diff.documents import document_strings
from hatch_lower.build.diff.tensors import CONSTANTS, header_of

DOCUMENT_LIMIT = 1 << 26
"""Bytes of a document that is read whole."""
FOLDER = "/_lowered/"
MANIFEST = "/manifest.json"
LEAST_SIZE = 256
"""Bytes: a smaller number in a document is not taken for the size of a member."""
DIGEST = re.compile("[0-9a-f]{64}")


def pair_members(first: Wheel, second: Wheel) -> tuple[dict[str, str], dict[str, str]]:
    """Return the members of both wheels, and the tensors that have other contents.

    A delegate is called by the digest of its contents, so one that differs has two names; plan and manifest say at the
    same place which it is. So have tensors. Metadata folders are called by the version, which may differ too.

    Returns:
        The name of each member in the first wheel to that in the second; the key of each differing tensor in the second
        wheel to that in the first.
    """
    pairs = {name: name for name in first.members if name in second.members}
    keys: dict[str, str] = {}
    folders = [metadata_folder(wheel) for wheel in (first, second)]
    for name in sorted(first.members.keys() - pairs.keys()):
        other = f"{folders[1]}{name.removeprefix(folders[0])}"
        if folders[0] and name.startswith(folders[0]) and other in second.members:
            pairs[name] = other
    documents = sorted(name for name in pairs if FOLDER in name and name.endswith(".json"))
    for name in sorted(documents, key=lambda name: name.endswith(MANIFEST)):  # whose lists are sorted by digest
        if first.digests[name] != second.digests[name]:
            one, other = document_of(first, name), document_of(second, name)
            pair_files(name, document_strings(one, other), pairs, first, second)
            pair_keys(one, other, keys)
    for name, counterpart in sorted(pairs.items()):
        if name != counterpart and FOLDER in name:
            pair_keys(head_of(first, name), head_of(second, counterpart), keys)
    return pairs, keys


def metadata_folder(wheel: Wheel) -> str:
    """Return the folder `….dist-info/`, or nothing."""
    found = sorted({f"{name.partition('/')[0]}/" for name in wheel.members if ".dist-info/" in name})
    return found[0] if len(found) == 1 else ""


def pair_files(
    document: str, strings: Iterable[tuple[str, str]], pairs: dict[str, str], first: Wheel, second: Wheel
) -> None:
    """Add files that only one wheel has each, and that a document names at the same place."""
    base = document[: document.index(FOLDER) + len(FOLDER)]
    taken = set(pairs.values())
    for one, other in strings:
        left, right = base + one, base + other
        if left in first.members and left not in pairs and right in second.members and right not in taken:
            pairs[left] = right
            taken.add(right)


def pair_keys(first: Any, second: Any, keys: dict[str, str]) -> None:
    """Add the keys of tensors that two plans name at the same place, if they are digests; other documents have none."""
    try:
        pairs = [(one["key"], other["key"]) for one, other in zip(first["storages"], second["storages"], strict=False)]
    except (KeyError, TypeError):
        return
    for one, other in pairs:
        if one != other and all(isinstance(each, str) and DIGEST.fullmatch(each) for each in (one, other)):
            keys.setdefault(other, one)


def head_of(wheel: Wheel, name: str) -> Any:
    """Return the JSON value that a member begins with, after its length; `None` for another format."""
    found = header_of(map_member(wheel, name))
    return None if found is None else found[0]


def document_of(wheel: Wheel, name: str) -> Any:
    """Return a member's JSON value; `None` if it is none, or too large."""
    if wheel.members[name].file_size > DOCUMENT_LIMIT:
        return None
    try:
        return json.loads(bytes(map_member(wheel, name)))
    except (ValueError, RecursionError):
        return None


def known_of(
    first: Wheel, second: Wheel, pairs: Mapping[str, str], keys: Mapping[str, str], places: Mapping[str, str]
) -> Known:
    """Return what the comparisons of single members need."""
    different = {name: other for name, other in pairs.items() if first.digests[name] != second.digests[other]}
    digests = {second.digests[other]: first.digests[name] for name, other in different.items()}
    sizes = {(first.members[name].file_size, second.members[other].file_size) for name, other in different.items()}
    names: dict[str, str] = {}
    stored: set[str] = set()
    for name in sorted(different, key=lambda name: (not name.endswith(".json"), name)):
        if FOLDER in name:
            document = document_of(first, name) if name.endswith(".json") else head_of(first, name)
            for key, constant in constant_names(document):
                names.setdefault(key, constant)
            if name.endswith(CONSTANTS) and isinstance(document, dict):
                stored |= document.keys()
    unequal = frozenset(each for each in sizes if each[0] != each[1] and min(each) >= LEAST_SIZE)
    return Known(places, {**keys, **digests}, unequal, names, frozenset(stored))


def constant_names(document: Any) -> Iterator[tuple[str, str]]:
    """Yield the key of each constant's storage, and the constant's name, of a plan; nothing of another document."""
    try:
        for name, constant in sorted(document["constants"].items()):
            yield str(document["storages"][constant["storage"]]["key"]), name
    except (AttributeError, IndexError, KeyError, TypeError):
        return


def record_rows(record: str, text: str, wheel: Wheel, pairs: Mapping[str, str]) -> list[str]:
    """Return the rows of a RECORD that say something else than what the wheel has, and only the names of the rest.

    Args:
        record: its name.
        text: its contents.
        wheel: the wheel that it is in.
        pairs: name of a member in this wheel to what to call it; rows of other members are left out.
    """
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
    """Return what a RECORD is to list for a member besides its name."""
    digest = base64.urlsafe_b64encode(bytes.fromhex(wheel.digests[name])).decode().rstrip("=")
    return [f"sha256={digest}", str(wheel.members[name].file_size)]
