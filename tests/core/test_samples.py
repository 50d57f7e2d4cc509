"""Sample files: which inputs a file has for which method, and what is said where it has others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.plans import BATCH, method, op, parameter, plan_of, plan_value, tensor_input, v

from hatch_lower.errors import SampleError
from hatch_lower.pipeline.emit.constants import constants_bytes
from hatch_lower.runtime.samples import Sample, read_samples, sample_leaves, sample_paths

pytestmark = pytest.mark.torch

METHODS = {"forward": ["image", 'boxes["a/0/b"]'], "embed": ["image"]}
IMAGE, BOXES = torch.ones(2, 3), torch.zeros(4)


def write(folder: Path, **tensors: torch.Tensor) -> Path:
    """Write a sample file."""
    path = folder / "samples.safetensors"
    path.write_bytes(constants_bytes(tensors))
    return path


def refusal(folder: Path, **tensors: torch.Tensor) -> str:
    """Return what is said of a sample file."""
    with pytest.raises(SampleError) as caught:
        read_samples(write(folder, **tensors), METHODS)
    return str(caught.value)


def test_a_key_names_method_case_and_input(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        **{
            "image": IMAGE,
            'boxes["a/0/b"]': BOXES,
            "10/image": IMAGE * 10,
            'forward/10/boxes["a/0/b"]': BOXES,
            "embed/2/image": IMAGE * 2,
        },
    )
    found = read_samples(path, METHODS)
    assert [sample.name for sample in found["forward"]] == [
        "samples.safetensors, case 0",
        "samples.safetensors, case 10",
    ]
    assert [int(sample.values["image"].max()) for sample in found["embed"]] == [1, 2, 10]
    assert torch.equal(found["forward"][1].values['boxes["a/0/b"]'], BOXES)


def test_a_method_may_have_no_sample(tmp_path: Path) -> None:
    found = read_samples(write(tmp_path, **{"embed/0/image": IMAGE}), METHODS)
    assert [len(found["forward"]), len(found["embed"])] == [0, 1]


def test_a_method_that_is_not_there_is_refused(tmp_path: Path) -> None:
    text = refusal(tmp_path, **{"embde/0/image": IMAGE})
    assert text.startswith("a sample is for an unknown method\n  where: samples.safetensors: 'embde/0/image'")
    assert "did you mean `embed`?" in text


@pytest.mark.parametrize("key", ["imge", "0/imge", "embed/0/imge", "embed/image", 'embed/0/boxes["a/0/b"]', ""])
def test_an_input_that_is_not_there_is_refused(tmp_path: Path, key: str) -> None:
    text = refusal(tmp_path, **{key: IMAGE})
    assert text.startswith("a sample is for an unknown input")
    assert "keys are `METHOD/CASE/INPUT`, `CASE/INPUT` or `INPUT`" in text


def test_a_case_that_lacks_an_input_is_refused(tmp_path: Path) -> None:
    text = refusal(tmp_path, **{"3/image": IMAGE})
    assert text.startswith("a sample lacks an input of the method\n  where: samples.safetensors, case 3 of `forward`")
    assert "`forward/3/image`" in text


def test_two_values_for_one_input_are_refused(tmp_path: Path) -> None:
    assert "another key for `image` of `embed` in case 0" in refusal(
        tmp_path, **{"embed/0/image": IMAGE, "embed/00/image": IMAGE}
    )


def test_a_file_that_holds_nothing_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path).startswith("a sample file is empty")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(SampleError, match="the sample file does not exist"):
            read_samples(path, METHODS)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 something else", b"\xff" * 100], ids=["empty", "zip", "ff"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "samples.npz"
    path.write_bytes(data)
    with pytest.raises(SampleError, match="a sample file cannot be read") as caught:
        read_samples(path, METHODS)
    assert caught.value.where == str(path)
    assert "safetensors.torch.save_file" in caught.value.hint


PLAN = plan_of(
    plan_value(
        forward=method(
            [
                tensor_input("s0", 3),
                {"kind": "literal", "value": 2},
                {"kind": "symbol", "expr": "s1"},
                tensor_input(2, 2, dtype="complex128"),
            ],
            [op("aten.relu.default", v(0), out=4)],
            v(4),
            parameters=[parameter("x"), parameter("by"), parameter("count"), parameter("wide")],
            symbols={**BATCH, "s1": {"min": 2, "max": 5, "name": "count"}},
        )
    )
).methods["forward"]
GOOD = {
    "x": torch.ones(4, 3),
    "count": torch.tensor(3),
    "wide": torch.ones(2, 2, dtype=torch.complex128),
}


def leaves_of(tmp_path: Path, **others: torch.Tensor) -> list[object]:
    """Return the leaves of a sample of `PLAN` that was written and read."""
    path = write(tmp_path, **{f"forward/0/{key}": value for key, value in {**GOOD, **others}.items()})
    (sample,) = read_samples(path, {"forward": sample_paths(PLAN)})["forward"]
    return sample_leaves("forward", PLAN, sample)


def test_a_sample_has_no_literals(tmp_path: Path) -> None:
    assert sample_paths(PLAN) == ["x", "count", "wide"]
    x, by, count, wide = leaves_of(tmp_path)
    assert (by, count) == (2, 3)
    assert isinstance(x, torch.Tensor)
    assert isinstance(wide, torch.Tensor)
    assert wide.dtype is torch.complex128  # which safetensors lacks
    assert torch.equal(wide, GOOD["wide"])


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("x", torch.ones(4, 2), "dimension 1 is 2, which must be 3"),
        ("x", torch.ones(3), "1 dimensions, which must be 2"),
        ("x", torch.ones(4, 3, dtype=torch.float64), "float64"),
        ("x", torch.ones(2000, 3), "dimension 0 is 2000, but batch must be at most 1024"),
        ("count", torch.tensor(6), "the integer is 6, but count must be at most 5"),
        ("count", torch.tensor(3.0), "not an int"),
        ("count", torch.tensor([3, 3]), "not an int"),
    ],
)
def test_a_sample_of_another_dtype_or_size_is_refused(
    tmp_path: Path, path: str, value: torch.Tensor, reason: str
) -> None:
    with pytest.raises(SampleError) as caught:
        leaves_of(tmp_path, **{path: value})
    assert caught.value.what == "a sample does not fit the method"
    assert caught.value.where == "samples.safetensors, case 0"
    assert reason in caught.value.found
    assert f"for `{path}`" in caught.value.found


def test_an_input_that_is_changed_in_place_lies_as_it_did(tmp_path: Path) -> None:
    plan = plan_of(
        plan_value(
            forward=method(
                [tensor_input("s0", 3, stride=[1, "s0"])],
                [op("aten.relu.default", v(0), out=1)],
                v(1),
                symbols=BATCH,
                input_mutations=[(0, v(1))],
            )
        )
    ).methods["forward"]
    (leaf,) = sample_leaves("forward", plan, Sample("a sample", {"x0": torch.arange(6.0).reshape(2, 3)}))
    assert isinstance(leaf, torch.Tensor)
    assert leaf.stride() == (1, 2)
    assert leaf.tolist() == [[0, 1, 2], [3, 4, 5]]
