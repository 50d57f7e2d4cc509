"""The openvino backend's indices: several at once, bounds of integers, and integers that OpenVINO must not compute."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.modules import Call
from torch import Tensor
from torch.export import Dim

from hatch_lower import load
from hatch_lower.errors import CallError
from hatch_lower.exir.graph.operators import operator_name
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._program import LoweredProgram, to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.loaded import LoadedModel

if find_spec("openvino") is None:
    pytest.skip("OpenVINO is not installed", allow_module_level=True)

from hatch_lower.backends.openvino.bounds import BoundsOfGraph
from hatch_lower.backends.openvino.compile import OpenvinoBackend
from hatch_lower.exir.lowered_backend_module import get_lowered_submodules

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

ROWS, COLUMNS = Dim("rows", min=1, max=9), Dim("columns", min=1, max=12)
FREE = Dim("free", min=1)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE", "off")


def lower(function: Callable[..., Any], *inputs: Tensor, shapes: Any = None) -> LoweredProgram:
    program = torch.export.export(Call(function), inputs, dynamic_shapes=None if shapes is None else (shapes,))
    return to_edge_transform_and_lower(
        program, partitioner=[OpenvinoBackend.partitioner({"threads": 1})]
    ).to_executorch()


def partitions(lowered: LoweredProgram) -> list[set[str]]:
    """Return the operators of each partition."""
    (program,) = lowered.programs.values()
    modules = [module.original_module.graph.nodes for _, module, _ in get_lowered_submodules(program.graph_module)]
    return [{operator_name(node.target) for node in nodes if node.op == "call_function"} for nodes in modules]


def reasons(lowered: LoweredProgram) -> set[str]:
    (found,) = lowered.reasons.values()
    return set(found.values())


def loaded(lowered: LoweredProgram, folder: Path) -> LoadedModel:
    return load(save_program(lowered, folder / "program"))


def last_tokens(x: Tensor, scores: Tensor) -> Tensor:
    """Return the place of the greatest score in each row, as CLIP's text encoder does."""
    return x.sin()[torch.arange(x.shape[0]), scores.to(torch.int32).argmax(-1)] * 2


def windows(x: Tensor, scores: Tensor) -> Tensor:
    """Return windows of three columns, as the convolution of ConvBERT does."""
    places = torch.arange(x.shape[1])[None] + torch.arange(3)[:, None]
    return F.pad(x.exp()[:, None, :, :1], (0, 0, 1, 1))[:, :, places[..., None], torch.zeros(1, 1, dtype=torch.int64)]


def masks(x: Tensor, scores: Tensor) -> Tensor:
    """Return a mask of float32 as bool, in the order of numbered rows and columns, as DETR does."""
    rows, columns = torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])[None]
    return (x[..., 0].relu().to(torch.bool))[rows, columns].float() * 3


@pytest.mark.parametrize("function", [last_tokens, windows, masks], ids=lambda function: function.__name__)
def test_several_indices_that_are_in_range_by_their_sizes_are_taken(
    function: Callable[..., Tensor], tmp_path: Path
) -> None:
    shapes = ({0: ROWS, 1: COLUMNS}, {0: ROWS, 1: COLUMNS})
    lowered = lower(function, torch.randn(3, 5, 4), torch.randn(3, 5), shapes=shapes)
    (operators,) = partitions(lowered)
    assert "aten.index.Tensor" in operators
    model = loaded(lowered, tmp_path)
    for rows, columns in ((3, 5), (1, 1), (9, 12), (2, 1), (1, 7)):
        given = torch.randn(rows, columns, 4), torch.randn(rows, columns) * 100
        torch.testing.assert_close(model(*given), function(*given))


def test_several_indices_for_more_places_than_openvino_numbers_are_left() -> None:
    x, scores = torch.randn(3, 5, 4), torch.randn(3, 5)
    lowered = lower(last_tokens, x, scores, shapes=({0: FREE}, {0: FREE}))
    assert "`aten.index.Tensor` has several indices for more places than OpenVINO numbers" in reasons(lowered)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_several_given_indices_are_compared_with_fixed_sizes_before_a_call(dtype: torch.dtype, tmp_path: Path) -> None:
    def net(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return x.sin()[:, first, second] * 2

    x, first, second = (
        torch.randn(2, 4, 6),
        torch.tensor([[0], [-4]], dtype=dtype),
        torch.tensor([5, -6, 2], dtype=dtype),
    )
    lowered = lower(net, x, first, second)
    assert len(partitions(lowered)) == 1
    model = loaded(lowered, tmp_path)
    torch.testing.assert_close(model(x, first, second), net(x, first, second))
    for wrong in (4, -5, torch.iinfo(dtype).max, torch.iinfo(dtype).min):
        bad = first.clone()
        bad[1] = wrong
        with pytest.raises(CallError, match="an index is out of range") as caught:
            model(x, bad, second)
        assert caught.value.where == "`args_1` of method `forward`"
        assert caught.value.found == f"{wrong} at [1, 0], where a table has 4 rows"
        assert caught.value.hint == "give indices from -4 to 3"
        torch.testing.assert_close(model(x, first, second), net(x, first, second))


def test_several_given_indices_into_dynamic_sizes_are_left(tmp_path: Path) -> None:
    def net(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return x.sin()[first, second] * 2

    given = torch.randn(3, 6), torch.tensor([0, 2]), torch.tensor([5, 1])
    lowered = lower(net, *given, shapes=({0: ROWS}, {}, {}))
    assert "it chooses among indices, and OpenVINO does not notice indices out of range" in reasons(lowered)
    model = loaded(lowered, tmp_path)
    torch.testing.assert_close(model(*given), net(*given))
    with pytest.raises(CallError, match="an index is out of range") as caught:
        model(given[0], torch.tensor([0, 3]), given[2])
    assert caught.value.found == "3 at [1], where a table has 3 rows"


def test_gathered_places_are_bounded_or_compared_before_a_call(tmp_path: Path) -> None:
    def net(x: Tensor, near: Tensor, far: Tensor) -> tuple[Tensor, Tensor]:
        bounded = (near + 2).clamp(0, 5).unsqueeze(0).expand(x.shape[0], 4, 3)
        return x.sin().gather(-1, bounded), x.cos().gather(1, far)

    x, near, far = torch.randn(3, 4, 6), torch.randint(-9, 9, (4, 3)), torch.randint(0, 4, (3, 2, 6))
    lowered = lower(net, x, near, far, shapes=({0: ROWS}, {}, {0: ROWS}))
    (operators,) = partitions(lowered)
    assert "aten.gather.default" in operators
    model = loaded(lowered, tmp_path)
    for found, expected in zip(model(x, near, far), net(x, near, far), strict=True):
        assert torch.equal(found.isfinite(), expected.isfinite())
        torch.testing.assert_close(found, expected)
    wide = torch.tensor([2**40, -(2**40), 2**63 - 5, 2**32 + 1, -(2**32), 3]).view(2, 3).repeat(2, 1)
    torch.testing.assert_close(model(x, wide, far), net(x, wide, far))
    for wrong in (4, -1, 2**32 + 1):
        with pytest.raises(CallError, match="an index is out of range"):
            model(x, near, far.clone().fill_(wrong))


def test_a_gather_from_a_part_of_its_table_is_left() -> None:
    def net(x: Tensor, places: Tensor) -> Tensor:
        return x.sin().gather(1, places) * 2

    lowered = lower(net, torch.randn(3, 4, 6), torch.randint(0, 4, (3, 2, 5)))
    assert "the index of `aten.gather.default` is smaller than its table in another dimension" in reasons(lowered)


def test_places_that_openvino_counts_are_compared_there(tmp_path: Path) -> None:
    def net(x: Tensor) -> tuple[Tensor, ...]:
        weights, experts = x.softmax(-1).topk(2, -1)
        chosen = experts[..., None] == torch.arange(4)
        return torch.where(chosen, weights[..., None], 0.0).sum(1), experts > 2, x.argmax(1) != 3

    lowered = lower(net, torch.randn(5, 4), shapes=({0: ROWS},))
    assert len(partitions(lowered)) == 1
    model = loaded(lowered, tmp_path)
    for rows in (5, 1, 9):
        x = torch.randn(rows, 4)
        for found, expected in zip(model(x), net(x), strict=True):
            torch.testing.assert_close(found, expected)


def test_places_beyond_the_whole_numbers_of_float32_are_not_compared(tmp_path: Path) -> None:
    def net(x: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
        places = x.sin().argmax(0)
        return places == wide, places == 2**24 + 1, places < 2**40, (x * 2).argmax(0) == torch.arange(2**24, 2**24 + 4)

    x, wide = torch.randn(7), torch.tensor([2**32, 3, -(2**62), 2**31])
    lowered = lower(net, x, wide)
    assert not {"aten.eq.Tensor", "aten.eq.Scalar", "aten.lt.Scalar"} & set().union(*partitions(lowered))
    for found, expected in zip(loaded(lowered, tmp_path)(x, wide), net(x, wide), strict=True):
        assert torch.equal(found, expected)


def test_positions_between_integers_are_no_partition(tmp_path: Path) -> None:
    """T5's buckets: torch rounds logarithms down, and another library's logarithm of 2 may be less."""
    table = torch.randn(32, 4)

    def net(x: Tensor) -> Tensor:
        distances = (torch.arange(x.shape[1])[None] - torch.arange(x.shape[1])[:, None]).abs()
        buckets = (torch.log(distances.float() / 8 + 1) * 3).to(torch.int64).clamp(0, 31)
        return x.sin() + F.embedding(buckets, table).sum(1)

    lowered = lower(net, torch.randn(3, 5, 4), shapes=({0: ROWS, 1: COLUMNS},))
    (operators,) = partitions(lowered)
    assert "aten.log.default" not in operators
    assert "its partition would compute positions alone, which takes torch less time than a call of OpenVINO" in (
        reasons(lowered)
    )
    x = torch.randn(2, 11, 4)
    torch.testing.assert_close(loaded(lowered, tmp_path)(x), net(x))


def bounds_of(function: Callable[..., Any], *inputs: Tensor, shapes: Any = None) -> tuple[BoundsOfGraph, Any]:
    program = to_edge(torch.export.export(Call(function), inputs, dynamic_shapes=None if shapes is None else (shapes,)))
    (output,) = program.graph.find_nodes(op="output")
    return BoundsOfGraph(program.graph, program.range_constraints), output.args[0]


def fits_columns(function: Callable[[Tensor], Tensor]) -> bool:
    bounds, (place,) = bounds_of(function, torch.randn(3, 5), shapes=({0: ROWS, 1: COLUMNS},))
    columns = next(iter(place.graph.find_nodes(op="placeholder"))).meta["val"].shape[1]
    return bounds.fits(place, columns)


def test_numbers_that_wrap_around_have_no_bounds() -> None:
    def net(x: Tensor) -> tuple[Tensor, Tensor]:
        small = x.argmax(1).to(torch.int8)
        return torch.ops.aten.copy(small, x.argmax() + 200), torch.ops.aten.copy(small, x.argmax(0)[:1])

    bounds, (wrapped, kept) = bounds_of(net, torch.randn(3, 5))
    assert not bounds.fits(wrapped, 1000)
    assert bounds.fits(kept, 1000)


@pytest.mark.parametrize(
    ("function", "fits"),
    [
        (lambda x: torch.arange(x.shape[1]) + 0, True),
        (lambda x: torch.arange(x.shape[1]) + 1, False),
        (lambda x: torch.arange(x.shape[1]) - 1, False),
        (lambda x: torch.arange(1, x.shape[1] + 1) - 1, True),
        (lambda x: torch.arange(x.shape[0]) + 0, False),
        (lambda x: torch.arange(x.shape[1]).neg().neg(), True),
        (lambda x: x.argmax(1) + 0, True),
        (lambda x: x.argmax() + 0, False),
        (lambda x: x.topk(1, 0)[1] + 0, False),
        (lambda x: x.argmax(1).clamp(0, 0), True),
        (lambda x: x.to(torch.int64).clamp(-1, 0), False),
        (lambda x: torch.where(x > 0, torch.arange(x.shape[1]), 0), True),
        (lambda x: torch.where(x > 0, torch.arange(x.shape[1]), 12), False),
        (lambda x: (x > 0).to(torch.int64) * 0, True),
        (lambda x: (x > 0).to(torch.int64), False),
        (lambda x: torch.full((2,), 2**31, dtype=torch.int64).to(torch.int32) * 0 + 0, False),
        (lambda x: x.to(torch.int64) * 0, False),
    ],
)
def test_bounds_hold_for_all_sizes(function: Callable[[Tensor], Tensor], fits: bool) -> None:
    assert fits_columns(function) is fits
