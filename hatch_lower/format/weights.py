"""`weights.json`: the storages of a model outside the wheel, and the files that hold their bytes.

```text
sources   files, each with URL, size and digest; a file name instead of a URL is resolved with `fetch --from`
spans     by the key of a storage: source, begin, end and digest of its bytes
```

A storage of a plan is either in the constants file or listed here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from hatch_lower.canonical import canonical_json
from hatch_lower.format.codec import Damage, decode_file, encode, refuse_damaged_file, within
from hatch_lower.format.constants import Storage, content_key
from hatch_lower.format.values import DTYPES, Digest, Natural, read_text
from hatch_lower.frozen import Frozen
from hatch_lower.urls import packaged_fault

WEIGHTS_SCHEMA = 1
WEIGHTS = "weights.json"

FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")


def read_url(value: object) -> str:
    text = read_text(value)
    fault = "" if FILE_NAME.fullmatch(text) else packaged_fault(text)
    if fault:
        raise Damage(f"{text!r:.120} instead of a URL of weights: {fault}")
    return text


class WeightsSource(Frozen):
    url: Annotated[str, read_url]
    size: Natural  # bytes
    sha256: Digest  # of the whole file

    @property
    def has_place(self) -> bool:
        """Whether the source has a full URL; otherwise `url` is a file name and `fetch --from` names its folder."""
        return "://" in self.url


@dataclass(frozen=True, slots=True)
class StorageSpan:
    """Bytes of a source."""

    source: Natural  # index
    begin: Natural  # in the file
    end: Natural
    sha256: Digest  # of the bytes from `begin` to `end`


class Weights(Frozen):
    sources: tuple[WeightsSource, ...]
    spans: Mapping[Digest, StorageSpan]  # by the key of a storage

    def validate(self) -> None:
        urls = [source.url for source in self.sources]
        if len(set(urls)) != len(urls):
            raise Damage("a source that is listed twice", ".sources")
        for key, span in self.spans.items():
            with within(f".spans['{key}']"):
                if span.source >= len(self.sources):
                    raise Damage(f"source {span.source} of {len(self.sources)}")
                size = self.sources[span.source].size
                if not span.begin <= span.end <= size:
                    raise Damage(f"the bytes {span.begin} to {span.end} of {size}")


def read_weights(data: bytes, where: str) -> Weights:
    return decode_file(Weights, data, WEIGHTS_SCHEMA, where)


def write_weights(weights: Weights) -> bytes:
    return canonical_json({"schema": WEIGHTS_SCHEMA, **encode(weights, packaged=True)})


def spans_outside(storages: Sequence[Storage], weights: Weights, where: str) -> dict[int, StorageSpan]:
    """Return the spans of a plan's storages outside the wheel, by index. Raises `ProgramError` if a digest differs."""
    found: dict[int, StorageSpan] = {}
    for index, storage in enumerate(storages):
        span = weights.spans.get(storage.key)
        if span is None:
            continue
        if span.end - span.begin != storage.nbytes:
            refuse_damaged_file(
                f"{where}: {storage.key}",
                f"{span.end - span.begin} bytes for {storage.length} elements of {storage.dtype}",
            )
        if content_key(storage.dtype, span.sha256) != storage.key:
            refuse_damaged_file(f"{where}: {storage.key}", "another sha256 than that of the storage's bytes")
        found[index] = span
    return found


def is_aligned(storage: Storage, span: StorageSpan) -> bool:
    """Return whether a span can be used in place; otherwise `load` copies its bytes to aligned memory."""
    return span.begin % DTYPES[storage.dtype].size == 0
