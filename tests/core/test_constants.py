"""Storages of constants: ties, views, deduplication, and the file that holds them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from hatch_lower.errors import EdgeError, ProgramError
from hatch_lower.format.constants import DataLayout
from hatch_lower.pipeline.emit.constants import (
    Constants,
    ConstantUse,
    NamedStorage,
    SpanDigests,
    collect_constants,
    constants_bytes,
    merge_storages,
    name_constants,
    write_constants,
)
from hatch_lower.runtime.mapped import ConstantsFile

pytestmark = pytest.mark.torch


def collect(tensors: Mapping[str, torch.Tensor], mutable: frozenset[str] = frozenset()) -> Constants:
    return collect_constants(tensors, mutable, SpanDigests())


def rebuild(constants: Constants, path: Path) -> dict[str, torch.Tensor]:
    """Return the constants as a reader of the file gets them."""
    write_constants(path, merge_storages([constants.data]))
    storages = []
    with safe_open(path, "pt") as file:
        for storage in constants.storages:
            tensor = file.get_tensor(storage.key)
            dtype = getattr(torch, storage.dtype)
            storages.append(tensor if tensor.dtype is dtype else tensor.view(dtype))
            assert storages[-1].shape == (storage.length,)
    return {
        name: storages[place.storage]
        .view(getattr(torch, place.dtype))
        .as_strided(place.shape, place.stride, place.offset)
        for name, place in constants.constants.items()
    }


KINDS = {
    "contiguous": torch.arange(6.0).view(2, 3),
    "transposed": torch.arange(6.0).view(2, 3).t(),
    "strided": torch.arange(20.0)[3:17:2],
    "expanded": torch.arange(3.0).view(3, 1).expand(3, 4),
    "scalar": torch.tensor(2.5),
    "one": torch.tensor([7.0]),
    "empty": torch.zeros(0, 3),
    "bool": torch.tensor([True, False, True]),
    "int64": torch.arange(5),
    "uint8": torch.arange(5, dtype=torch.uint8),
    "float16": torch.arange(5, dtype=torch.float16),
    "bfloat16": torch.arange(5, dtype=torch.bfloat16),
    "float8": torch.arange(5.0).to(torch.float8_e4m3fn),
    "complex64": torch.tensor([1 + 2j, 3j]),
    "complex128": torch.tensor([1 + 2j, 3j], dtype=torch.complex128),
    "conjugated": torch.tensor([1 + 2j, 3j]).conj(),
    "parameter": torch.nn.Parameter(torch.ones(3)),
}


def test_every_kind_of_tensor_survives(tmp_path: Path) -> None:
    constants = collect(KINDS)
    rebuilt = rebuild(constants, tmp_path / "constants.safetensors")
    for name, tensor in KINDS.items():
        assert rebuilt[name].dtype is tensor.dtype
        assert rebuilt[name].shape == tensor.shape
        assert rebuilt[name].stride() == tensor.stride()
        if tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1:
            assert rebuilt[name].view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()
        else:
            assert torch.equal(rebuilt[name], tensor.detach())


def test_only_the_spanned_memory_is_stored() -> None:
    constants = collect({"strided": KINDS["strided"], "expanded": KINDS["expanded"]})
    assert [storage.length for storage in constants.storages] == [13, 3]


def test_ties_and_overlapping_views_share_a_storage(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    tensors = {
        "embedding": base.view(3, 4),
        "head": base.view(3, 4),
        "tail": base[6:],
        "apart": base.clone()[:0],
    }
    constants = collect(tensors)
    places = constants.constants
    assert places["embedding"].storage == places["head"].storage == places["tail"].storage
    assert places["tail"].offset == 6
    rebuilt = rebuild(constants, tmp_path / "constants.safetensors")
    assert rebuilt["embedding"].data_ptr() == rebuilt["head"].data_ptr()
    rebuilt["tail"][0] = 100.0
    assert rebuilt["embedding"][1, 2] == 100.0


def test_views_that_do_not_overlap_are_apart() -> None:
    base = torch.arange(12.0)
    constants = collect({"first": base[:4], "second": base[4:8]})
    assert len(constants.storages) == 2
    assert [storage.length for storage in constants.storages] == [4, 4]


def test_views_of_different_dtypes_share_bytes(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    constants = collect({"float": base[1:], "bytes": base.view(torch.uint8)[2:11]})
    assert [storage.dtype for storage in constants.storages] == ["uint8"]
    rebuilt = rebuild(constants, tmp_path / "constants.safetensors")
    assert torch.equal(rebuilt["float"], base[1:])
    assert torch.equal(rebuilt["bytes"], base.view(torch.uint8)[2:11])


def test_equal_contents_are_stored_once() -> None:
    constants = collect({"a": torch.ones(8), "b": torch.ones(8), "c": torch.ones(2, 4), "d": torch.ones(8).half()})
    places = constants.constants
    assert places["a"].storage == places["b"].storage == places["c"].storage != places["d"].storage
    assert len(constants.data) == 2


def test_equal_bytes_of_another_dtype_are_not_merged() -> None:
    constants = collect({"float": torch.zeros(4), "int": torch.zeros(4, dtype=torch.int32)})
    assert len(constants.data) == 2


def test_mutable_constants_are_merged_only_when_they_are_tied() -> None:
    cache = torch.zeros(8)
    tensors = {"a": cache, "tied": cache, "b": torch.zeros(8), "fixed": torch.zeros(8), "same": torch.zeros(8)}
    places = collect(tensors, frozenset({"a", "b"})).constants
    assert places["a"].storage == places["tied"].storage
    assert len({places[name].storage for name in ("a", "b", "fixed")}) == 3
    assert places["fixed"].storage == places["same"].storage
    assert {name for name, place in places.items() if place.mutable} == {"a", "tied", "b"}


def test_recipes_share_one_file() -> None:
    weight, bias = torch.arange(8.0), torch.arange(3.0)
    digests = SpanDigests()
    one = collect_constants({"weight": weight, "bias": bias}, frozenset(), digests)
    other = collect_constants({"weight": weight.clone(), "only": torch.ones(2)}, frozenset(), digests)
    merged = merge_storages([one.data, other.data])
    assert len(merged) == 3
    assert list(merged) == sorted(merged)
    assert {storage.key for storage in other.storages} < set(merged)


def test_names_are_shared_by_methods_and_lifted_names_are_not() -> None:
    weight = torch.ones(3)
    tensors, mutable = name_constants(
        [
            ConstantUse("forward", "weight", weight),
            ConstantUse("embed", "weight", weight.clone(), mutated=True),
            ConstantUse("forward", "lifted_tensor_0", torch.zeros(1), lifted=True),
            ConstantUse("embed", "lifted_tensor_0", torch.ones(1), lifted=True),
        ]
    )
    assert list(tensors) == ["weight", "forward:lifted_tensor_0", "embed:lifted_tensor_0"]
    assert mutable == {"weight"}


def test_one_name_for_two_tensors_is_refused() -> None:
    with pytest.raises(EdgeError) as caught:
        name_constants(
            [ConstantUse("forward", "weight", torch.ones(3)), ConstantUse("embed", "weight", torch.zeros(3))]
        )
    assert str(caught.value) == (
        "two methods have different tensors under the name `weight`\n  where: method `embed`\n"
        "  to do: export all methods of a model from the same module"
    )


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (torch.zeros(3, device="meta"), "Tensor, layout torch.strided, dtype torch.float32, on meta"),
        (torch.eye(3).to_sparse(), "Tensor, layout torch.sparse_coo, dtype torch.float32, on cpu"),
    ],
)
def test_tensors_without_plain_memory_are_refused(tensor: torch.Tensor, found: str) -> None:
    with pytest.raises(EdgeError) as caught:
        collect({"net.weight": tensor})
    assert str(caught.value) == (
        "a constant is not a plain tensor on the CPU, and cannot be packaged\n  where: `net.weight`\n"
        f"  found: {found}\n"
        "  to do: move the module to the CPU, and use dense tensors, before the export"
    )


def test_the_file_is_aligned_deterministic_and_its_digests_are_right(tmp_path: Path) -> None:
    data = collect(KINDS).data
    first, second = tmp_path / "first", tmp_path / "second"
    written = write_constants(first, data)
    assert write_constants(second, dict(reversed(data.items()))) == written
    content = first.read_bytes()
    assert content == second.read_bytes() == constants_bytes(data)
    length = 8 + int.from_bytes(content[:8], "little")
    assert length % 64 == 0
    assert written.size == len(content)
    assert written.sha256 == hashlib.sha256(content).hexdigest()
    assert written.header_sha256 == hashlib.sha256(content[:length]).hexdigest()
    header = json.loads(content[8:length])
    assert list(header) == sorted(header)
    sizes = {key: tensor.element_size() for key, tensor in data.items()}
    assert all(entry["data_offsets"][0] % sizes[key] == 0 for key, entry in header.items())
    spans = [entry["data_offsets"] for entry in header.values()]
    assert all(begin % math.gcd(64, end - begin) == 0 for begin, end in spans)


@pytest.mark.parametrize("begin", [1, 15, 1 << 40, (1 << 64) - 1])
def test_a_head_that_points_elsewhere_is_refused(tmp_path: Path, begin: int) -> None:
    path = tmp_path / "constants.ptd"
    write_constants(path, {"w": torch.ones(16)}, {"w": NamedStorage("w", DataLayout("float32", (16,), (0,)))})
    ConstantsFile(path, "constants")
    content = bytearray(path.read_bytes())
    content[32:40] = begin.to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(ProgramError, match=r"a safetensors header that does not fit|no JSON"):
        ConstantsFile(path, "constants")


def test_an_empty_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "constants.safetensors"
    written = write_constants(path, {})
    assert written.size == 64
    with safe_open(path, "pt") as file:
        assert not list(file.keys())


def test_large_tensors_are_written_whole(tmp_path: Path) -> None:
    data = collect({"large": torch.arange(3_000_000, dtype=torch.float32), "odd": torch.arange(13.0)}).data
    path = tmp_path / "constants.safetensors"
    written = write_constants(path, data)
    assert written.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    with safe_open(path, "pt") as file:
        assert all(torch.equal(file.get_tensor(key), tensor) for key, tensor in data.items())
