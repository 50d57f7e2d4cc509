"""Weights that would be packaged twice."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support import wheels

from hatch_lower.driver.context import DistributedFile
from hatch_lower.format.results import PayloadFile
from hatch_lower.hatch.duplicates import Repeated, find_repeated, repetition_warning
from hatch_lower.pipeline.emit.constants import data_map_head

ONE, TWO = b"1" * 4096, b"2" * 4096


def write_tensors(path: Path, dtype: str = "F32", **tensors: bytes) -> Path:
    values = {name: (dtype, [len(data)], data) for name, data in tensors.items()}
    path.write_bytes(wheels.tensors(values, {"by": "test"}))
    return path


@pytest.fixture(params=["constants.safetensors", "constants.ptd"])
def payload(tmp_path: Path, request: pytest.FixtureRequest) -> list[PayloadFile]:
    source = write_tensors(tmp_path / "constants", a=ONE, b=TWO, c=b"tiny")
    if request.param.endswith(".ptd"):
        source.write_bytes(data_map_head([], source.stat().st_size, 64) + source.read_bytes())
    return [PayloadFile(f"digits/_lowered/digits/{request.param}", source, 1, "")]


@pytest.mark.parametrize(
    ("dtype", "tensors", "size", "whole"),
    [
        ("F32", {"weight": ONE}, 4096, True),
        ("F32", {"weight": ONE, "small": b"tiny"}, 4096, True),
        ("F32", {"weight": ONE, "norm.num_batches_tracked": b"12345678"}, 4096, True),
        ("F32", {"weight": ONE, "small": b"more"}, 4096, False),
        ("F32", {"x": TWO, "weight": ONE, "other": b"3" * 4096}, 8192, False),
        ("F32", {"weight": ONE, "other": ONE[:-1] + b"2"}, 4096, False),
        ("F32", {"other": b"3" * 4096}, 0, False),
        ("F32", {"small": b"tiny"}, 0, True),
        ("F64", {"weight": ONE}, 0, False),
        ("F32", {"part": ONE[:2048]}, 0, False),
    ],
)
def test_tensors_are_compared_by_content(
    tmp_path: Path, payload: list[PayloadFile], dtype: str, tensors: dict[str, bytes], size: int, whole: bool
) -> None:
    file = DistributedFile(write_tensors(tmp_path / "w", dtype, **tensors), "digits/w.safetensors")
    assert find_repeated([file], payload) == ((Repeated(file, size, whole),) if size else ())


@pytest.mark.parametrize(
    "data",
    [b"", b"short", b"\xff" * 100, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 9) + b'{"a": {}}'],
)
def test_a_file_that_only_has_the_suffix_is_passed_over(
    tmp_path: Path, payload: list[PayloadFile], data: bytes
) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(data)
    assert find_repeated([DistributedFile(path, "digits/w.safetensors")], payload) == ()


def test_other_files_are_not_read(payload: list[PayloadFile]) -> None:
    assert find_repeated([DistributedFile(Path("missing"), "digits/w.bin")], payload) == ()


def test_the_warning_names_the_exact_line() -> None:
    repeated = Repeated(DistributedFile(Path("w"), "w.safetensors"), 5_000, False)
    assert repetition_warning(repeated, "w.safetensors", ()) == (
        "`w.safetensors` is packaged although the lowered programs hold 5,000 bytes of its tensors already; "
        'to ship them once, add to `[tool.hatch.build.targets.wheel]`: exclude = ["/w.safetensors"]'
    )
    assert repetition_warning(repeated, "", ()).endswith("to ship them once, take it out of `force-include`")
