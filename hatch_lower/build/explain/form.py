"""The stored form of an exported method: its canonical form, with the names and source lines that this leaves out."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LARGEST_FORM = 1 << 28
"""Bytes of JSON that a stored form may have; the largest graphs of today have a tenth."""


@dataclass(frozen=True, slots=True)
class Form:
    """An exported method's canonical form, and what it leaves out but a reader wants.

    Args:
        graph: rows of the nodes.
        inputs: a row for each placeholder.
        outputs: a row for each output.
        symbols: names and ranges.
        sources: for each node `digits/model.py:31`, empty where it has none.
        names: of the placeholders, as the author wrote them: `image`, `net.linear.weight`.
        arguments: operator to the names of its arguments.
    """

    graph: Sequence[Any]
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    symbols: Sequence[Any]
    sources: Sequence[str] = ()
    names: Sequence[str] = ()
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read_form(data: bytes) -> Form | None:
    """Return the form in a blob of the store, or `None` if this version cannot read it."""
    try:
        stream = zlib.decompressobj()
        value = json.loads(stream.decompress(data, LARGEST_FORM))
        beside = {name: value[name] for name in ("sources", "names", "arguments") if name in value}
        return Form(**value["form"], **beside)
    except (zlib.error, ValueError, KeyError, TypeError):
        return None
