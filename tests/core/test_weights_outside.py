"""Weights that a published file has are not in the wheel: which are found there, and what stays."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.exports import Workshop, settings_of

from hatch_lower.canonical import sha256_bytes, sha256_file
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import PackageError, VerificationError
from hatch_lower.exir.graph.tensors import dtype_name, span_bytes
from hatch_lower.format.constants import content_key
from hatch_lower.format.record import ModelReport
from hatch_lower.format.weights import Weights, read_weights
from hatch_lower.pipeline.checkpoint import LocalSource, read_checkpoint
from hatch_lower.pipeline.emit.outside import find_outside
from hatch_lower.runtime import outside

pytestmark = pytest.mark.torch

URL = "https://example.org/model.safetensors"
OUTSIDE = settings_of(weights=(URL,))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    (tmp_path / "shop").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "shop")
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    return Workshop(tmp_path / "shop")


@pytest.fixture
def published(tmp_path: Path) -> Callable[..., LocalSource]:
    def publish(tensors: Mapping[str, torch.Tensor], url: str = URL) -> LocalSource:
        path = tmp_path / f"{sha256_bytes(url.encode())[:8]}.safetensors"
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, path)
        return LocalSource(url, path.stat().st_size, sha256_file(path), path)

    return publish


def storages_of(*tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    flat = [tensor.reshape(-1) for tensor in tensors]
    return {content_key(dtype_name(each.dtype), sha256_bytes(span_bytes(each))): each for each in flat}


def state_of(shop: Workshop) -> dict[str, torch.Tensor]:
    return dict(shop.capture().methods[0].program.state_dict)


def weights_of(report: ModelReport) -> Weights:
    assert report.manifest.weights is not None
    (file,) = [file for file in report.files if file.path == report.manifest.weights.path]
    return read_weights(file.source.read_bytes(), file.path)


def constants_of(report: ModelReport) -> LocalSource:
    assert report.manifest.constants is not None
    (file,) = [file for file in report.files if file.path == report.manifest.constants.path]
    return LocalSource("https://example.org/constants", file.size, file.sha256, file.source)


def test_a_tensor_is_found_by_its_bytes_whatever_its_name(published: Callable[..., LocalSource]) -> None:
    torch.manual_seed(0)
    weight, count = torch.randn(4, 8), torch.arange(5)
    source = published({"whoever": weight, "called": count, "it": torch.randn(4, 8)})
    storages = storages_of(weight, count)
    found = find_outside(storages, [source])
    assert found.weights.spans.keys() == storages.keys()
    assert found.weights.sources == (source.source(),)
    data = source.path.read_bytes()
    for key, span in found.weights.spans.items():
        assert data[span.begin : span.end] == bytes(span_bytes(storages[key]))
        assert span.sha256 == sha256_bytes(data[span.begin : span.end])


def test_equal_bytes_of_another_dtype_stay_in_the_wheel(published: Callable[..., LocalSource]) -> None:
    zeros = torch.zeros(300)
    halves = torch.randn(300, generator=torch.Generator().manual_seed(0))
    source = published({"zeros": zeros.to(torch.int32), "halves": halves.to(torch.bfloat16)})
    found = find_outside(storages_of(zeros, halves), [source])
    assert (found.weights.spans, found.weights.sources) == ({}, ())


def test_a_run_inside_a_tensor_is_found(published: Callable[..., LocalSource]) -> None:
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(3 * 32, 32, generator=generator)
    small = torch.randint(0, 9, (5000,), generator=generator, dtype=torch.uint8)
    source = published({"fused": fused, "small": small})
    storages = storages_of(
        fused[:32], fused[32:64], fused[64:], small[100:3000], torch.randn(2000, generator=generator)
    )
    found = find_outside(storages, [source])
    assert found.weights.spans.keys() == set(list(storages)[:4])
    begins = [found.weights.spans[key].begin for key in list(storages)[:3]]
    assert [begin - begins[0] for begin in begins] == [0, 4096, 8192]


@pytest.mark.parametrize(
    ("shape", "begin", "end"),
    [
        ((5000,), 777, 4000),  # of a flat tensor anything
        ((4, 6, 64), 9 * 64, 20 * 64),  # rows
        ((8, 32, 3, 3), 2 * 288, 5 * 288),  # filters
        ((9, 40, 5), 200, 800),  # rows are short
    ],
)
def test_parts_of_tensors_of_every_shape_are_found(
    published: Callable[..., LocalSource], shape: tuple[int, ...], begin: int, end: int
) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    source = published({"before": torch.arange(3.0), "tensor": tensor})
    part = tensor.reshape(-1)[begin:end].clone()
    (span,) = find_outside(storages_of(part), [source]).weights.spans.values()
    (found,) = [each for each in read_checkpoint(source).tensors if each.name == "tensor"]
    assert (span.begin - found.begin, span.end - found.begin) == (4 * begin, 4 * end)


def test_a_source_with_none_of_the_weights_is_not_named(published: Callable[..., LocalSource]) -> None:
    first, second = torch.arange(4.0), torch.arange(7.0)
    sources = [
        published({"other": torch.arange(9.0)}, "https://example.org/1"),
        published({"second": second}, "https://example.org/2"),
        published({"first": first, "second": second}, "https://example.org/3"),
    ]
    weights = find_outside(storages_of(first, second), sources).weights
    assert [source.url for source in weights.sources] == ["https://example.org/2", "https://example.org/3"]
    assert sorted(span.source for span in weights.spans.values()) == [0, 1]


def write_unaligned(path: Path, tensors: Mapping[str, torch.Tensor], gap: int) -> LocalSource:
    # safetensors itself aligns headers to 8 bytes; other writers need not
    entries, data = {}, b""
    for name, tensor in tensors.items():
        content = bytes(span_bytes(tensor))
        entries[name] = {
            "dtype": "F32",
            "shape": [tensor.numel()],
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8 + gap)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return LocalSource(f"https://example.org/{gap}", path.stat().st_size, sha256_file(path), path)


def test_what_is_not_aligned_is_used_and_counted(tmp_path: Path) -> None:
    tensor = torch.arange(512.0)
    odd = write_unaligned(tmp_path / "odd", {"a": tensor}, 3)
    even = write_unaligned(tmp_path / "even", {"a": tensor}, 4)
    (storage,) = storages_of(tensor)
    found = find_outside(storages_of(tensor), [odd])
    assert (found.weights.spans[storage].begin % 4, found.copied) == (3, 2048)
    # of two places the aligned one is taken
    found = find_outside(storages_of(tensor), [odd, even])
    assert (found.weights.sources, found.copied) == ((even.source(),), 0)
    # and a run in it is found as well
    assert find_outside(storages_of(tensor[100:400]), [odd]).copied == 1200


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "no header of safetensors at its beginning"),
        (b"PK\3\4" + bytes(100), "no header of safetensors at its beginning"),
        (b"\2" + bytes(7) + b"[]", "header: a list of 0 instead of an object"),
        (b"\2" + bytes(7) + b"{x", "header: no JSON: "),
        (
            b"\x3d" + bytes(7) + b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}' + bytes(7),
            "'a': the bytes 0 to 8 of 7",
        ),
        (
            b"\x3d" + bytes(7) + b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}' + bytes(8),
            "'a': 8 bytes for F32[1]",
        ),
    ],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, data: bytes, found: str) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(data)
    with pytest.raises(PackageError) as caught:
        read_checkpoint(LocalSource(URL, len(data), sha256_bytes(data), path))
    assert (caught.value.what, caught.value.where) == ("a source of weights is not a safetensors file", URL)
    assert caught.value.found.startswith(found)


def test_weights_of_a_published_checkpoint_are_left_out_and_verified(
    shop: Workshop, published: Callable[..., LocalSource]
) -> None:
    source = published({f"model.{name}": tensor for name, tensor in state_of(shop).items()})
    report, events = shop.build(shop.capture(), OUTSIDE, [source])
    weights = weights_of(report)
    assert weights.sources == (source.source(),)
    # the weight, the bias and the count of calls; the other tables are no state of the module
    assert sorted(span.end - span.begin for span in weights.spans.values()) == [4, 16, 64]
    assert report.outside is not None
    assert (report.outside.files, report.outside.outside, report.outside.copied) == (1, 84, 0)
    assert report.outside.kept == {"absent from the files: folded, or made by the export": 32}
    inside = {tensor.name for tensor in read_checkpoint(constants_of(report)).tensors}
    assert len(inside) == 2
    assert not inside & weights.spans.keys()
    assert "compare" in {event.stage for event in events.seen}


def test_what_is_verified_are_the_bytes_of_the_source(
    shop: Workshop, published: Callable[..., LocalSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = published(state_of(shop))

    def halved(path: Path, size: int) -> memoryview:
        assert (path, size) == (source.path, source.size)
        return memoryview(bytearray(size))

    monkeypatch.setattr(outside, "map_file", halved)
    with pytest.raises(VerificationError):
        shop.build(shop.capture(), OUTSIDE, [source])


def test_a_checkpoint_of_another_training_leaves_the_weights_in_the_wheel(
    shop: Workshop, published: Callable[..., LocalSource]
) -> None:
    state = state_of(shop)
    other = {name: tensor + 1 for name, tensor in state.items()}
    halves = {"block.linear.weight": state["block.linear.weight"].to(torch.bfloat16)}
    report, _ = shop.build(shop.capture(), OUTSIDE, [published({**other, **halves})])
    assert report.manifest.weights is None
    assert report.outside is not None
    assert report.outside.kept == {
        "of another dtype in the files": 64,
        "absent from the files: folded, or made by the export": 32,
        "with other values in the files": 20,
    }


def test_a_file_beside_the_wheel_has_the_weights(shop: Workshop) -> None:
    settings = settings_of(weights=("file",))
    report, _ = shop.build(shop.capture(), settings)
    (beside,) = report.beside
    assert beside.path == f"net-net-{beside.sha256[:16]}.safetensors"
    assert sha256_file(beside.source) == beside.sha256
    weights = weights_of(report)
    assert [(source.url, source.sha256, source.size) for source in weights.sources] == [
        (beside.path, beside.sha256, beside.size)
    ]
    assert report.manifest.constants is None
    assert report.outside is not None
    assert (report.outside.outside, report.outside.copied, report.outside.kept) == (116, 0, {})


@pytest.mark.parametrize("weights", ["file", URL])
def test_what_executorch_reads_by_name_stays_in_its_file(
    shop: Workshop, published: Callable[..., LocalSource], weights: str
) -> None:
    pytest.importorskip("executorch")
    recipes = Recipe("default", (BackendChoice("executorch"),)), Recipe("portable")
    settings = settings_of(*recipes, weights=(weights,))
    source = published({"weight": torch.eye(64), "bias": torch.arange(64.0), "table": torch.arange(640.0).sin()})
    report, _ = shop.build(shop.capture(LARGE), settings, [source] if weights == URL else ())
    assert report.manifest.constants is not None
    assert report.manifest.constants.path == "net/constants.ptd"
    assert report.outside is not None
    assert report.outside.outside == 640 * 4
    (reason,) = report.outside.kept
    assert reason == "read by `executorch` from its own file"
    assert report.outside.kept[reason] >= 64 * 64 * 4


LARGE = """\
import torch
from hatch_lower import Method, Model


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.linear.weight.data = torch.eye(64)
        self.linear.bias.data = torch.arange(64.0)
        self.register_buffer("table", torch.arange(640.0).sin())

    def forward(self, x):
        return self.linear(x), torch.special.bessel_j0(self.table) * x.sum()


def export():
    return Model(Net().eval(), {"forward": Method((torch.ones(2, 64),))})
"""


def levels(report: ModelReport) -> set[int]:
    return {row.level for row in report.rows}


def test_another_source_lowers_no_partition_again(shop: Workshop, published: Callable[..., LocalSource]) -> None:
    state = state_of(shop)
    first = published(state)
    report, _ = shop.build(shop.capture(), OUTSIDE, [first])
    again, _ = shop.build(shop.capture(), OUTSIDE, [first])
    assert levels(again) == {2}
    assert (again.outside, weights_of(again)) == (report.outside, weights_of(report))
    second = published({**state, "more": torch.arange(3.0)})
    changed, _ = shop.build(shop.capture(), OUTSIDE, [second])
    assert levels(changed) <= {3, 0}
    assert all(row.reused == row.partitions for row in changed.rows)
    assert weights_of(changed).sources == (second.source(),)
    inside, _ = shop.build(shop.capture())
    assert all(row.reused == row.partitions for row in inside.rows)
    assert inside.manifest.weights is None
    assert inside.outside is None
