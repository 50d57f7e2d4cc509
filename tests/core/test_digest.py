from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from hatch_lower.canonical import canonical_json, digest_of, sha256_bytes, sha256_file


def test_canonical_json_is_independent_of_the_order_of_keys() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}\n'.encode()
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of([1, 2]) != digest_of([2, 1])


def test_canonical_json_holds_names_that_are_no_utf8() -> None:
    names = [os.fsdecode(b"weights\xff.bin"), r"weights\udcff.bin"]
    assert json.loads(canonical_json(names)) == names
    assert digest_of(names[0]) != digest_of(names[1])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_canonical_json_refuses_what_json_cannot_hold(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json([value])


def test_a_file_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000  # more than one piece
    (tmp_path / "file").write_bytes(data)
    assert sha256_file(tmp_path / "file") == sha256_bytes(data) == hashlib.sha256(data).hexdigest()
