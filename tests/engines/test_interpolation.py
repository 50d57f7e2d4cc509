"""Interpolations on the engines: eager's elements and numbers for every pair of sizes, not for the example's only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.modules import Call
from support.older import EXECUTORCH
from torch import Tensor
from torch.export import Dim

import hatch_lower
from hatch_lower.backends.interpolation import between, is_regular, keeps_size, nearest_places, order_of_axes
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.graph.surgery import all_nodes
from hatch_lower.exir.lowered_backend_module import get_lowered_backend_modules
from hatch_lower.exir.lowering.lower import Turn, lower_exported, programs_of
from hatch_lower.exir.lowering.unlike_eager import DECOMPOSED, ENGINES_OWN, UNLIKE_EAGER, rounds_places
from hatch_lower.exir.program._program import LoweredProgram, to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed"))
    for name in ("onnxruntime", "openvino")
]
LONGEST = 132
# rounding decides on places of these; the others are whole factors, primes, and sizes of 1
PAIRS = [(26, 64), (26, 14), (28, 64), (56, 64), (14, 32), (112, 64), (25, 50), (1, 7), (7, 1), (1, 1), (13, 39)]
FACTORS = (0.1, 0.5, 0.7, 1.0, 1.5, 1.7, 2.0, 2.5, 3.0, 3.7, 10.0, 41.0)


def lower(function: Callable[..., Any], args: tuple[Tensor, ...], engine: str, dynamic: Any = None) -> LoweredProgram:
    shapes = None if dynamic is None else {"args": dynamic}
    program = torch.export.export(Call(function).eval(), args, dynamic_shapes=shapes, strict=False)
    partitioner = find_backend(engine).partitioner({})
    return to_edge_transform_and_lower(program, partitioner=[partitioner]).to_executorch()


def reasons(lowered: LoweredProgram) -> str:
    return "; ".join(sorted(set(lowered.reasons["forward"].values())))


def compare(
    function: Callable[..., Any],
    calls: Iterable[tuple[Tensor, ...]],
    engine: str,
    folder: Path,
    dynamic: Any = None,
    tolerance: Mapping[str, float] = {"rtol": 0, "atol": 0},
) -> LoweredProgram:
    """Lower a function for its first call, and compare all calls with eager."""
    given = list(calls)
    lowered = lower(function, given[0], engine, dynamic)
    model = hatch_lower.load(save_program(lowered, folder / "saved"))
    for call in given:
        torch.testing.assert_close(
            model(*call), function(*call), **tolerance, msg=lambda text, call=call: f"{sizes_of(call)}: {text}"
        )
    return lowered


def sizes_of(call: tuple[Tensor, ...]) -> list[list[int]]:
    return [list(value.shape) for value in call]


def numbered(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def to_lateral(image: Tensor, lateral: Tensor) -> Tensor:
    return lateral + F.interpolate(image, size=lateral.shape[2:], mode="nearest")


def dims(*names: str, least: int = 1, most: int = 300) -> dict[int, Any]:
    return {place: Dim(name, min=least, max=most) for place, name in enumerate(names, 2)}


# The formula.


def test_nearest_places_agree_for_all_pairs_of_sizes() -> None:
    for before in range(1, LONGEST + 1):
        row = numbered(1, 1, before)
        for after in range(1, LONGEST + 1):
            assert nearest_places(before, after, None) == F.interpolate(row, size=after).flatten().tolist(), (
                before,
                after,
            )


def test_nearest_places_agree_for_factors() -> None:
    for before, factor in product((1, 2, 7, 10, 26, 63), FACTORS):
        after = int(before * factor)
        if after:
            found = F.interpolate(numbered(1, 1, before), scale_factor=factor).flatten().tolist()
            assert nearest_places(before, after, factor) == found, (before, factor)


def test_regular_factors_give_the_places_of_a_division() -> None:
    wholes = [factor for factor in range(1, 64) if is_regular(Fraction(factor))]
    assert {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 32} <= set(wholes)
    assert not is_regular(Fraction(41))
    for factor in wholes:
        assert nearest_places(99, 99 * factor, None) == [place // factor for place in range(99 * factor)], factor
    assert not any(map(is_regular, (Fraction(3, 2), Fraction(1, 3), Fraction(0), Fraction(-2))))
    assert nearest_places(99 * 4, 99, None) == [4 * place for place in range(99)]
    assert is_regular(Fraction(1, 4))


def test_sizes_that_float32_rounds_otherwise_are_known() -> None:
    # 15 * 4.2 is 63 in float64, and a little less in float32
    assert keeps_size(10, 4.2)
    assert not keeps_size(15, 4.2)


def test_axes_that_shrink_are_looked_up_first() -> None:
    assert order_of_axes([(2, 4), (4, 2), (2, 4)]) == [1, 2, 0]
    assert order_of_axes([(object(), 4), (4, object())]) == [1, 0]


# The engines.


@pytest.mark.parametrize("engine", ENGINES)
def test_nearest_elements_of_dynamic_images_are_eagers(engine: str, tmp_path: Path) -> None:
    calls = [(numbered(1, 2, before, 3), torch.zeros(1, 1, after, 7)) for before, after in PAIRS]
    calls += [(numbered(1, 2, 3, before), torch.zeros(1, 1, 7, after)) for before, after in PAIRS]
    lowered = compare(to_lateral, calls, engine, tmp_path, (dims("a", "b"), dims("c", "d")))
    assert "upsample_nearest" not in reasons(lowered)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rank", [1, 3])
def test_nearest_elements_of_lines_and_volumes_are_eagers(engine: str, rank: int, tmp_path: Path) -> None:
    rest = [2] * (rank - 1)
    calls = [(numbered(2, 3, before, *rest), torch.zeros(1, 1, after, *rest)) for before, after in PAIRS]
    lowered = compare(to_lateral, calls, engine, tmp_path, (dims("a"), dims("b")))
    assert "upsample_nearest" not in reasons(lowered)


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_nearest_elements_of_all_pairs_of_sizes_are_eagers(engine: str, tmp_path: Path) -> None:
    sizes = range(1, LONGEST + 1)
    calls = ((numbered(1, 1, before), torch.zeros(1, 1, after)) for before, after in product(sizes, sizes))
    compare(to_lateral, [(numbered(1, 1, 25), torch.zeros(1, 1, 50)), *calls], engine, tmp_path, (dims("a"), dims("b")))


STATIC: Mapping[str, Callable[[Tensor], Tensor]] = {
    "both axes grow": lambda x: F.interpolate(x, size=(64, 64)),
    "one axis grows": lambda x: F.interpolate(x, size=(64, 11)),
    "both axes shrink": lambda x: F.interpolate(x, size=(14, 5)),
    "one axis stays": lambda x: F.interpolate(x, size=(26, 31)),
    "nothing changes": lambda x: F.interpolate(x, size=(26, 16)) + 1,
    "a whole factor": lambda x: F.interpolate(x, size=(78, 32)),
    "a whole factor that rounds": lambda x: F.interpolate(x, scale_factor=41),
    "a half": lambda x: F.interpolate(x, scale_factor=0.5),
    "a fraction": lambda x: F.interpolate(x, scale_factor=1.5),
    "two factors": lambda x: F.interpolate(x, scale_factor=(2.3, 0.7)),
    "bytes": lambda x: F.interpolate((x * 3).to(torch.uint8), size=(64, 11)),
    "halves": lambda x: F.interpolate(x.half(), size=(64, 11)),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_nearest_elements_of_static_images_are_eagers(engine: str, tmp_path: Path) -> None:
    function = Call(lambda x: tuple(each(x) for each in STATIC.values()))
    lowered = compare(function, [(torch.randn(1, 3, 26, 16).abs(),)], engine, tmp_path)
    left = [name for name in lowered.reasons["forward"] if "upsample_nearest" in name]
    assert len(left) == {"onnxruntime": 0, "openvino": 2}[engine], reasons(lowered)


@pytest.mark.parametrize("engine", ENGINES)
def test_images_whose_channels_lie_last_have_eagers_elements(engine: str, tmp_path: Path) -> None:
    images = [torch.randn(2, 3, before, 9).to(memory_format=torch.channels_last) for before, _ in PAIRS]
    calls = [(image, torch.zeros(1, 1, after, 11)) for image, (_, after) in zip(images, PAIRS, strict=True)]
    compare(to_lateral, calls, engine, tmp_path, ({2: Dim("a", max=300)}, {2: Dim("b", max=300)}))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_factor_for_which_the_layout_decides_is_left(engine: str) -> None:
    def enlarged(x: Tensor) -> Tensor:
        return F.interpolate(x + 1, scale_factor=1.125)

    assert "where eager depends on the layout" in reasons(lower(enlarged, (torch.randn(1, 2, 5, 5),), engine))
    assert "upsample" not in reasons(lower(enlarged, (torch.randn(1, 2, 8, 8),), engine))
    few = F.interpolate(numbered(1, 2, 1, 5), scale_factor=(1.0, 1.125))
    last = F.interpolate(numbered(1, 2, 1, 5).to(memory_format=torch.channels_last), scale_factor=(1.0, 1.125))
    assert few.shape == last.shape


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("corners", [False, True])
def test_bilinear_images_of_dynamic_sizes_are_eagers(engine: str, corners: bool, tmp_path: Path) -> None:
    def resized(image: Tensor, lateral: Tensor) -> Tensor:
        return F.interpolate(image, size=lateral.shape[2:], mode="bilinear", align_corners=corners)

    sizes = [(25, 25, 50, 50), (5, 7, 1, 1), (1, 1, 1, 1), (1, 5, 7, 1), (5, 1, 1, 7), (13, 17, 17, 13), (26, 3, 64, 1)]
    calls = [(torch.randn(1, 2, a, b), torch.zeros(1, 1, c, d)) for a, b, c, d in sizes]
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    few = dims("a", "b", most=ENGINES_OWN)
    lowered = compare(resized, calls, engine, tmp_path, (few, dims("c", "d")), tolerance)
    assert "upsample_bilinear" not in reasons(lowered)


BILINEAR: Mapping[str, Callable[[Tensor], Tensor]] = {
    "to one": lambda x: F.interpolate(x, (1, 1), mode="bilinear"),
    "to one line": lambda x: F.interpolate(x, (1, 9), mode="bilinear"),
    "to one column": lambda x: F.interpolate(x, (9, 1), mode="bilinear"),
    "corners to one": lambda x: F.interpolate(x, (1, 1), mode="bilinear", align_corners=True),
    "a factor to one": lambda x: F.interpolate(x, scale_factor=0.25, mode="bilinear"),
    "a fraction": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    "a size that float32 rounds": lambda x: F.interpolate(x, scale_factor=(1, 4.2), mode="bilinear"),
    "from one": lambda x: F.interpolate(x[:, :, :1, :1], (3, 4), mode="bilinear"),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_bilinear_images_of_static_sizes_are_eagers(engine: str, tmp_path: Path) -> None:
    function = Call(lambda x: tuple(each(x) for each in BILINEAR.values()))
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    lowered = compare(function, [(torch.randn(1, 2, 5, 15),)], engine, tmp_path, tolerance=tolerance)
    left = [name for name in lowered.reasons["forward"] if "upsample_bilinear" in name]
    assert len(left) == 1, reasons(lowered)
    assert "does not hold 4.2 times a size" in reasons(lowered)


# What torch takes apart into other numbers than eager's.


def built(function: Callable[..., Any], args: tuple[Tensor, ...], engine: str, dynamic: Any = None) -> LoweredProgram:
    """Return a program as a build lowers it."""
    shapes = None if dynamic is None else {"args": dynamic}
    program = torch.export.export(Call(function).eval(), args, dynamic_shapes=shapes, strict=False)
    turn = Turn({"forward": find_backend(engine).partitioner({})})
    lowered = lower_exported({"forward": program}, [turn], preserve_nodes=UNLIKE_EAGER).methods
    return LoweredProgram(programs_of(lowered), {}, {name: method.reasons for name, method in lowered.items()})


CORNERS = ["linear", "bilinear", "bicubic", "trilinear"]


@pytest.mark.parametrize("engine", ["reference", *ENGINES])
@pytest.mark.parametrize("mode", CORNERS)
def test_corners_stay_in_place_where_a_dynamic_size_is_one(engine: str, mode: str, tmp_path: Path) -> None:
    rank = 1 + CORNERS.index(mode) - (mode in ("bicubic", "trilinear"))

    def resized(image: Tensor, lateral: Tensor) -> Tensor:
        return F.interpolate(image, size=lateral.shape[2:], mode=mode, align_corners=True) * 2

    shape = [3] * (rank - 1)
    calls = [
        (torch.randn(1, 2, before, *shape), torch.zeros(1, 1, after, *shape))
        for before, after in ((5, 8), (5, 1), (1, 1), (1, 4))
    ]
    lowered = built(resized, calls[0], engine, (dims("a"), dims("b")))
    model = hatch_lower.load(save_program(lowered, tmp_path / "saved"))
    for call in calls:
        torch.testing.assert_close(model(*call), resized(*call), rtol=1e-4, atol=1e-5)


BETWEEN: Mapping[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.interpolate(x[:, 0], 210, mode="linear"),
    "bilinear": lambda x: F.interpolate(x, (4, 337), mode="bilinear"),
    "bilinear, less": lambda x: F.interpolate(x, (4, 210), mode="bilinear"),
    "bilinear, a factor": lambda x: F.interpolate(x, scale_factor=1.125, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x, (4, 337), mode="bilinear", align_corners=True),
    "bilinear, antialias": lambda x: F.interpolate(x, (4, 337), mode="bilinear", antialias=True),
    "bicubic": lambda x: F.interpolate(x, (4, 210), mode="bicubic"),
    "bicubic, corners": lambda x: F.interpolate(x, (4, 337), mode="bicubic", align_corners=True),
    "trilinear": lambda x: F.interpolate(x[None], (3, 4, 210), mode="trilinear"),
    "bilinear, twice": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, a quarter": lambda x: F.interpolate(x, (2, 75), mode="bilinear"),
}


@pytest.mark.parametrize("engine", ["reference", EXECUTORCH, "aoti", *ENGINES])
@pytest.mark.parametrize("mode", BETWEEN)
def test_places_between_elements_are_rounded_as_in_eager(engine: str, mode: str, tmp_path: Path) -> None:
    function, image = BETWEEN[mode], torch.randn(2, 16, 8, 300, generator=torch.Generator().manual_seed(0))
    if engine == "aoti" and mode != "bilinear, less":
        return  # by the same rule, and minutes of compiling
    model = hatch_lower.load(save_program(built(function, (image,), engine), tmp_path / "saved"))
    torch.testing.assert_close(model(image), function(image), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", [EXECUTORCH, "aoti", *ENGINES])
def test_an_engine_takes_places_by_a_power_of_two_or_of_few_elements(engine: str) -> None:
    def sized(x: Tensor, few: Tensor) -> Any:
        many = (F.interpolate(x, size, mode="bilinear") for size in ((600, 300), (75, 300)))
        return *many, F.interpolate(few, (47, 300), mode="bilinear")

    taken = built(sized, (torch.randn(1, 2, 300, 300), torch.randn(1, 2, ENGINES_OWN, 5)), engine)
    assert "upsample" not in reasons(taken)
    more = built(lambda x: F.interpolate(x, (450, 300), mode="bilinear"), (torch.randn(1, 2, 300, 300),), engine)
    left = re.search("rounds places between|differs from eager's", reasons(more))
    assert bool(left) == (engine != "openvino")  # whose models compute eager's places


@pytest.mark.parametrize("engine", ENGINES)
def test_images_of_many_pixels_and_dynamic_sizes_are_eagers(engine: str, tmp_path: Path) -> None:
    def enlarged(x: Tensor) -> Tensor:
        return F.interpolate(x.relu(), scale_factor=1.125, mode="bilinear") + 1

    calls = [(torch.randn(1, 8, height, 16),) for height in (24, 296, 1200)]
    sizes = ({2: 8 * Dim("h", min=1, max=200)},)
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    compare(enlarged, calls, engine, tmp_path, sizes, tolerance)

    def resized(image: Tensor, lateral: Tensor) -> Tensor:
        return F.interpolate(image, size=lateral.shape[2:], mode="bilinear")

    pairs = [(24, 40, 30, 47), (1, 1, 5, 7), (300, 5, 337, 9), (301, 200, 77, 222), (1500, 4, 2111, 1)]
    calls = [(torch.randn(1, 8, a, b), torch.zeros(1, 1, c, d)) for a, b, c, d in pairs]
    most = (dims("a", "b", most=3000), dims("c", "d", most=3000))
    compare(resized, calls, engine, tmp_path / "sizes", most, tolerance)


def test_places_between_elements_agree_for_many_pairs_of_sizes() -> None:
    for before, after in product((1, 7, 33, 300, 1200), (1, 5, 47, 337, 2111)):
        row = torch.randn(1, 8, 1, before)
        first, second, weights = between(before, after, None)
        weight = torch.tensor(weights)
        found = row[..., first] * (1 - weight) + row[..., second] * weight
        torch.testing.assert_close(found, F.interpolate(row, (1, after), mode="bilinear"), rtol=1e-5, atol=1e-6)


def places_of(function: Callable[..., Tensor], *args: Tensor, dynamic: Any = None, corners: bool = False) -> bool:
    """Return whether the only interpolation of a function may have more than 64 elements and rounded places."""
    shapes = None if dynamic is None else {"args": dynamic}
    program = torch.export.export(Call(function), args, dynamic_shapes=shapes, strict=False)
    (node,) = (node for node in program.graph.nodes if "upsample" in str(node.target))
    return rounds_places(node, DECOMPOSED, corners=corners)


@pytest.mark.parametrize(("most", "rounded"), [(DECOMPOSED, False), (DECOMPOSED + 1, True), (None, True)])
def test_the_largest_dynamic_size_decides_on_places(most: int | None, rounded: bool) -> None:
    height = {2: Dim("height", min=4, max=most)}
    image = torch.randn(1, 2, 25, 3)
    assert places_of(lambda x: F.interpolate(x, (50, 3), mode="bilinear"), image, dynamic=(height,)) is rounded
    assert not places_of(lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"), image, dynamic=(height,))
    doubled = (lambda x: F.interpolate(x, (2 * x.shape[2], 3), mode="bilinear"), image)
    assert not places_of(*doubled, dynamic=(height,))


def test_corners_in_place_are_rounded_by_the_steps_between_them() -> None:
    def resized(size: int) -> Callable[[Tensor], Tensor]:
        return lambda x: F.interpolate(x, (size, 3), mode="bilinear", align_corners=True)

    image = torch.randn(1, 2, 101, 3)
    assert not places_of(resized(202), image)
    assert places_of(resized(202), image, corners=True)
    assert not places_of(resized(201), image, corners=True)
    assert not places_of(lambda x: F.interpolate(x, (202, 3), mode="bilinear"), image.half())


@pytest.mark.parametrize("engine", [EXECUTORCH, "reference", *ENGINES])
def test_places_that_depend_on_the_processor_or_on_the_dtype_are_torchs_own(engine: str) -> None:
    def nearest(x: Tensor) -> Any:
        line, volume = x[:, :, 0], x[:, None]
        exact = [F.interpolate(each, size=115, mode="nearest-exact") for each in (line, x, volume)]
        return *exact, F.interpolate(line.double(), size=115), F.interpolate(volume.double(), size=115)

    lowered = built(nearest, (torch.randn(1, 3, 2, 25),), engine)
    program = lowered.exported_program()
    whole = [node for node in all_nodes(program.graph_module) if "nearest" in str(node.target)]
    delegated = [
        node
        for module in get_lowered_backend_modules(program.graph_module)
        for node in module.original_module.graph.nodes
        if "nearest" in str(node.target)
    ]
    assert len(whole) + len(delegated) == 5
    assert bool(delegated) == (engine == "reference")


def test_cubic_images_of_bytes_stay_whole() -> None:
    image = torch.randint(0, 255, (1, 3, 13, 26), dtype=torch.uint8)
    lowered = built(lambda x: F.interpolate(x, size=(31, 64), mode="bicubic"), (image,), "onnxruntime")
    assert "upsample_bicubic2d" in reasons(lowered)


def left_by_aoti(function: Callable[..., Any], *args: Tensor, dynamic: Any = None) -> str:
    return reasons(built(function, args, "aoti", dynamic))


def test_aoti_leaves_what_inductor_computes_otherwise_for_some_sizes() -> None:
    image, lateral, grid = torch.randn(1, 2, 25, 25), torch.zeros(1, 1, 50, 50), torch.rand(1, 5, 5, 2)
    pair = (dims("a", "b"), dims("c", "d"))
    corners = left_by_aoti(
        lambda x, y: F.interpolate(x, size=y.shape[2:], mode="bilinear", align_corners=True),
        *(image, lateral),
        dynamic=pair,
    )
    assert "decomposes `aten.upsample_bilinear2d.vec` into operations whose result differs from eager's" in corners
    double = left_by_aoti(lambda x: F.interpolate(x, size=115), image.double())
    assert "decomposes `aten.upsample_nearest2d.vec` into operations whose result differs from eager's" in double
    sampled = left_by_aoti(lambda x, y: F.grid_sample(x, y, mode="nearest", align_corners=False), image, grid)
    assert "rounds places between two elements" in sampled
    pooled = left_by_aoti(lambda x, y: F.adaptive_avg_pool2d(x, (y.shape[2], y.shape[3])), image, lateral, dynamic=pair)
    assert "compiles fixed sizes only" in pooled
    for pool in (F.adaptive_avg_pool2d, F.adaptive_max_pool2d):
        # inductor's code would read as many rows as its example has
        fixed = left_by_aoti(lambda x, pool=pool: pool(x, (2, 3)) + 1, image, dynamic=(dims("a", "b"),))
        assert "compiles fixed sizes only" in fixed


def test_aoti_refuses_what_inductor_compiles_for_its_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_lower.backends.aoti.support.why_not_sizes", lambda node: "")
    with pytest.raises(BackendError, match="for the sizes of its example only"):
        left_by_aoti(lambda x: F.adaptive_max_pool2d(x, (2, 3)), torch.randn(1, 2, 25, 25), dynamic=(dims("a", "b"),))
