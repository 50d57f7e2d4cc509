"""Comparing two members by what is in them: JSON, safetensors, native code, text, or bytes."""

from __future__ import annotations

import json
from typing import Any

from hatch_lower.build.diff.difference import Difference, Known
from hatch_lower.build.diff.documents import compare_documents, is_equal
from hatch_lower.build.diff.native import compare_libraries, read_library
from hatch_lower.build.diff.pairing import DOCUMENT_LIMIT
from hatch_lower.build.diff.tensors import compare_tensors, header_of, read_tensor_file
from hatch_lower.build.diff.texts import compare_bytes, compare_texts, pieces

CHECK_FILE = "/check.safetensors"
OTHER_FORM = "the same values, written otherwise: by another version of what writes the file"


def compare_members(member: str, first: memoryview, second: memoryview, known: Known) -> list[Difference]:
    """Return what differs in two members that are not equal; nothing if it follows from other members."""
    try:
        differences = compare_parsed(member, first, second, known)
    except RecursionError:  # a document that nests deeper than Python goes
        differences = None
    return [compare_bytes(member, first, second, known)] if differences is None else differences


def compare_parsed(member: str, first: memoryview, second: memoryview, known: Known) -> list[Difference] | None:
    libraries = read_library(first), read_library(second)
    if libraries[0] is not None and libraries[1] is not None:
        return compare_libraries(member, libraries[0], libraries[1], known.places) or None
    tensors = read_tensor_file(first), read_tensor_file(second)
    if tensors[0] is not None and tensors[1] is not None:
        drawn = not member.endswith(CHECK_FILE)
        differences = compare_tensors(member, tensors[0], tensors[1], known, drawn=drawn)
        return differences if differences or tensors[0].entries.keys() != tensors[1].entries.keys() else None
    headers = header_of(first), header_of(second)
    if headers[0] is not None and headers[1] is not None:
        return compare_framed(member, (first, second), (headers[0], headers[1]), known)
    if max(len(first), len(second)) > DOCUMENT_LIMIT:
        return None
    return compare_whole(member, bytes(first), bytes(second), known)


def compare_framed(
    member: str, contents: tuple[memoryview, memoryview], headers: tuple[tuple[Any, int], tuple[Any, int]], known: Known
) -> list[Difference]:
    """Return what differs in files that are a JSON value after its length, and something else behind it."""
    differences = compare_documents(member, headers[0][0], headers[1][0], known)
    first, second = (data[end:] for data, (_, end) in zip(contents, headers, strict=True))
    if next(pieces(first, second), None) is not None:
        return differences + compare_members(member, first, second, known)
    same = is_equal(headers[0][0], headers[1][0])
    return [Difference(member, "", "", "", OTHER_FORM)] if same else differences


def compare_whole(member: str, first: bytes, second: bytes, known: Known) -> list[Difference] | None:
    try:
        texts = first.decode(), second.decode()
    except UnicodeDecodeError:
        return None
    if any("\0" in text for text in texts):
        return None
    try:
        documents = json.loads(texts[0]), json.loads(texts[1])
    except ValueError:
        documents = None, None
    if not all(isinstance(document, dict | list) for document in documents):
        found = compare_texts(member, *texts, known)
        return [] if found is None else [found]
    if is_equal(*documents):
        return [Difference(member, "", "", "", OTHER_FORM)]
    return compare_documents(member, *documents, known)
