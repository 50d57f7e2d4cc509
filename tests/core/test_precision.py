"""Conversion of captured models to the precisions of recipes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from hatch_lower.config.settings import ModelSettings, Recipe
from hatch_lower.config.tables import BackendChoice, Precision
from hatch_lower.errors import CaptureError, SampleError
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel, capture_model
from hatch_lower.pipeline.eager import eager_factory, eager_modules
from hatch_lower.pipeline.precision.again import export_module
from hatch_lower.pipeline.precision.convert import Conversion, calibration_cases
from hatch_lower.pipeline.precision.halves import in_half
from hatch_lower.pipeline.precision.integer_weights import quantize_weights
from hatch_lower.pipeline.random_inputs import example_case

pytestmark = pytest.mark.torch

SETTINGS = ModelSettings("net", "net:export", "net", ("small",))


class Quiet:
    def report(self, event: object) -> None:
        pass


class Net(nn.Module):
    """A table, two linear layers, a norm, a softmax, and a buffer that counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.first = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.last = nn.Linear(64, 32)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, ids: Tensor) -> Tensor:
        self.calls.add_(1)
        hidden = self.norm(torch.relu(self.first(self.table(ids))))
        return torch.softmax(self.last(hidden), -1)


class Pool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.max_pool1d(x, 2)


def captured(module: nn.Module | None = None, shapes: Any = None, *inputs: Tensor) -> CapturedModel:
    torch.manual_seed(0)
    module = (Net() if module is None else module).eval()
    args = inputs or (torch.randint(0, 50, (4, 6)),)
    dims = shapes if inputs else ({0: Dim("batch", min=1, max=32), 1: 2 * Dim("half", min=1, max=16)},)
    return capture_model("net", Model(module, {"forward": Method(args, dynamic_shapes=dims)}), Quiet())


def method(model: CapturedModel) -> CapturedMethod:
    return model.methods[0]


def constants(program: torch.export.ExportedProgram) -> dict[str, Tensor]:
    return {**program.state_dict, **program.constants}


def operations(program: torch.export.ExportedProgram, name: str) -> list[torch.fx.Node]:
    return [node for node in program.graph.nodes if str(node.target).startswith(f"aten.{name}.")]


def difference(program: torch.export.ExportedProgram, model: CapturedModel, ids: Tensor) -> float:
    assert model.eager is not None
    with torch.no_grad():
        return float((program.module()(ids) - model.eager(ids)).abs().max())


# Halves


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_products_and_weights_are_halves_and_norms_and_outputs_stay_float32(half: torch.dtype) -> None:
    model = captured()
    program = in_half(method(model).program, half)
    assert {node.meta["val"].dtype for node in operations(program, "linear")} == {half}
    for name in ("layer_norm", "softmax"):
        assert [node.meta["val"].dtype for node in operations(program, name)] == [torch.float32]
    output = program.module()(torch.randint(0, 50, (3, 8)))
    assert (output.dtype, output.shape) == (torch.float32, (3, 8, 32))
    weights = {name: tensor.dtype for name, tensor in constants(program).items() if tensor.dim() == 2}
    assert set(weights.values()) == {half}, weights
    assert difference(program, model, torch.randint(0, 50, (3, 8))) < 0.01


class Masked(nn.Module):
    """Attention with a mask in float32."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@pytest.mark.parametrize("least", [torch.finfo(torch.float32).min, float("-inf")])
def test_a_row_with_all_places_masked_is_eagers_in_half_precision(least: float) -> None:
    x = torch.randn(2, 1, 6, 32, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(2, 1, 6, 6).masked_fill(torch.arange(6) > 2, least)
    mask[1] = least
    model = captured(Masked(), None, x, mask)
    found = in_half(method(model).program, torch.bfloat16).module()(x, mask)
    assert model.eager is not None
    torch.testing.assert_close(found, model.eager(x, mask), rtol=0.02, atol=0.02)


def test_state_of_a_method_in_half_precision_stays_float32() -> None:
    module = in_half(method(captured()).program, torch.bfloat16).module()
    ids = torch.randint(0, 50, (2, 4))
    module(ids), module(ids)
    assert module.calls.dtype is torch.float32
    assert module.calls.tolist() == [2]


def test_dynamic_sizes_of_a_method_in_half_precision_are_the_methods_own() -> None:
    before = method(captured()).program
    after = in_half(before, torch.bfloat16)
    assert {str(symbol): str(limits) for symbol, limits in after.range_constraints.items()} == {
        str(symbol): str(limits) for symbol, limits in before.range_constraints.items()
    }


def test_a_kept_module_computes_in_float32() -> None:
    program = in_half(method(captured()).program, torch.bfloat16, ["first"])
    first, last = operations(program, "linear")
    assert (first.meta["val"].dtype, last.meta["val"].dtype) == (torch.float32, torch.bfloat16)
    assert program.module()(torch.randint(0, 50, (2, 4))).dtype is torch.float32


def test_a_cache_beside_products_in_half_precision_keeps_its_dtype() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)
            self.register_buffer("cache", torch.zeros(8, 64))

        def forward(self, x: Tensor, place: Tensor) -> Tensor:
            self.cache[place] = self.layer(x)
            return self.cache.sum(0)

    inputs = torch.randn(2, 64), torch.tensor([1, 5])
    program = in_half(method(captured(Cache(), None, *inputs)).program, torch.bfloat16)
    assert program.module()(*inputs).dtype is torch.float32


def test_operations_on_halves_and_float32_cast_the_halves_explicitly() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x) + self.layer(x)

    program = in_half(method(captured(Residual(), None, torch.randn(3, 64))).program, torch.bfloat16)
    (total,) = operations(program, "add")
    assert {source.meta["val"].dtype for source in total.all_input_nodes} == {torch.float32}


class Written(nn.Module):
    """Layers beside a write through a view of a value that is read later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        row = torch.zeros(4, 65) + hidden.sum()
        row[:, 1:].scatter_(1, torch.arange(64).expand(4, 64), hidden)
        hidden[:, :48].fill_(5.0)
        result: Tensor = self.last(hidden) + row[:, 1:]
        return result


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "int8"])
def test_a_write_through_a_view_is_read_in_every_precision(precision: str) -> None:
    x = torch.randn(4, 64)
    model = captured(Written(), None, x)
    assert difference(method(converted(model, precision)).program, model, x) < 0.2


HALF_OPERATORS = {
    "a mask": lambda h: h.masked_fill(torch.arange(64) > 9, torch.finfo(torch.float32).min).softmax(-1),
    "a mask in place": lambda h: h.clone().masked_fill_(torch.arange(64) > 9, -1e9).softmax(-1),
    "a fill": lambda h: torch.where(torch.arange(64) > 9, torch.full_like(h, -1e9), h).softmax(-1),
    "an integer": lambda h: (h * 1000000) / 1000000,
    "a small divisor": lambda h: h * 1e-9 / (h * 0 + 1e-9),
    "limits": lambda h: h.clamp(-1e9, 1e9),
    "bits": lambda h: h.view(torch.int32).view(torch.float32),
    "a bilinear product": lambda h: nn.functional.bilinear(h, h, torch.ones(3, 64, 64) / 64),
    "a cross product": lambda h: torch.cross(h[:, :3], torch.ones(4, 3), dim=-1),
    "a determinant": lambda h: torch.linalg.det(h[:, :4]),
    "a vector": lambda h: torch.inner(h, torch.ones(64)),
    "a bag": lambda h: nn.functional.embedding_bag(torch.tensor([[0, 1]]), h),
}


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HALF_OPERATORS)
def test_numbers_and_operators_beyond_a_half_stay_in_float32(name: str, half: torch.dtype) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = HALF_OPERATORS[name](self.layer(x))
            return result

    x = torch.randn(4, 64)
    model = captured(Layer(), None, x)
    program = in_half(method(model).program, half)
    assert operations(program, "linear")[0].meta["val"].dtype is half
    assert difference(program, model, x) < 0.1


def test_an_operator_without_a_half_is_named() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            return torch.special.erfcx(self.layer(x))

    with pytest.raises(CaptureError, match="the method cannot have the precision `bfloat16`") as caught:
        converted(captured(Scaled(), None, torch.randn(2, 64)), "bfloat16")
    assert "erfcx_cpu" in caught.value.found


# Integers


@pytest.mark.parametrize(("bits", "share", "error"), [(8, 0.29, 0.002), (4, 0.19, 0.03)])
def test_integer_weights_take_a_share_of_the_bytes(bits: int, share: float, error: float) -> None:
    model = captured()
    module = method(model).program.module()
    quantize_weights(module, bits, tables_alone=False, kept=())
    program = export_module(method(model), module).program
    large = [
        name for name, tensor in constants(program).items() if tensor.dtype is torch.float32 and tensor.numel() > 999
    ]
    assert not large, large
    sizes = [sum(tensor.nbytes for tensor in constants(each).values()) for each in (program, method(model).program)]
    assert sizes[0] / sizes[1] < share
    assert 0 < difference(program, model, torch.randint(0, 50, (3, 8))) < error


def test_numbers_of_four_bits_are_taken_apart_exactly() -> None:
    layer = nn.Linear(32, 64, bias=False)
    integers = torch.randint(-7, 8, (64, 32))
    integers[:, 0] = 7  # so that the scale of each group is the step
    layer.weight.data = integers * 0.25
    model = captured(layer, None, torch.randn(3, 32))
    module = method(model).program.module()
    quantize_weights(module, 4, tables_alone=False, kept=())
    inputs = torch.randn(3, 32)
    assert torch.equal(module(inputs), layer(inputs))


def test_a_method_exported_again_has_the_same_names_and_limits_of_sizes() -> None:
    before = method(captured())
    after = export_module(before, before.program.module())
    assert sorted(after.dimensions.values()) == sorted(before.dimensions.values())
    assert after.program.module()(torch.randint(0, 50, (1, 2))).shape == (1, 2, 32)  # the smallest sizes
    shared = after.program.state_dict["first.weight"]
    assert shared is before.program.state_dict["first.weight"]


class Joined(nn.Module):
    def forward(self, tokens: Tensor, past: Tensor, mask: Tensor) -> Tensor:
        return torch.cat([past, tokens], 1) * mask


def test_a_size_may_depend_on_several_sizes() -> None:
    tokens, past = (Dim(name, min=1, max=64) for name in ("tokens", "past"))
    inputs = torch.randn(2, 3), torch.randn(2, 5), torch.randn(2, 8)
    model = captured(Joined(), ({1: tokens}, {1: past}, {1: Dim.AUTO}), *inputs)
    before = method(model)
    after = export_module(before, before.program.module())
    assert sorted(after.dimensions.values()) == sorted(before.dimensions.values()) == ["past", "tokens"]
    assert after.program.module()(torch.ones(2, 1), torch.ones(2, 64), torch.ones(2, 65)).shape == (2, 65)
    # torch's guard on the sum begins at 4, although the program computes sums from 2 on
    again = replace(model, methods=(after,), eager=None)
    smallest = torch.ones(2, 1), torch.ones(2, 1), torch.ones(2, 2)
    assert eager_factory(again, after)()(*smallest).shape == (2, 2)
    assert eager_modules(again)["forward"][0](*smallest).shape == (2, 2)


def converted(model: CapturedModel, precision: Any, backend: str = "onnxruntime", kept: tuple[str, ...] = ()) -> Any:
    pytest.importorskip("torchao")
    conversion = Conversion(model, SETTINGS, {each.name: [example_case(each)] * 3 for each in model.methods})
    recipe = Recipe("small", (BackendChoice(backend),), precision=precision)
    return conversion.converted(recipe, kept)


def test_calibrated_integers_compute_almost_as_float32() -> None:
    model = captured()
    program = method(converted(model, "int8")).program
    names = [str(node.target) for node in program.graph.nodes]
    assert "quantized_decomposed.quantize_per_tensor.default" in names
    assert difference(program, model, model.methods[0].args[0]) < 0.005


def test_a_kept_module_has_no_integers() -> None:
    program = method(converted(captured(), "int8", kept=("last",))).program
    assert constants(program)["last.weight"].dtype is torch.float32
    assert "first.weight" not in {name for name, t in constants(program).items() if t.dtype is torch.float32}


class Product(nn.Linear):
    """A linear layer of a class of its own."""


def functional_layers() -> dict[str, tuple[nn.Module, Tensor]]:
    tokens, images = torch.randn(2, 9, 64), torch.randn(2, 16, 8, 8)
    attention = nn.TransformerEncoderLayer(64, 4, 64, batch_first=True)
    same = nn.Conv2d(16, 32, 3, padding="same", dilation=2)
    return {
        "attention": (attention, tokens),
        "a subclass": (nn.Sequential(Product(64, 64)), tokens),
        "padding": (nn.Sequential(same, nn.ReLU(), nn.Conv2d(32, 16, (1, 3), padding="valid")), images),
    }


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("name", functional_layers())
def test_layers_that_are_functions_and_subclasses_have_integers(name: str, backend: str) -> None:
    module, x = functional_layers()[name]
    model = captured(module, None, x)
    program = method(converted(model, "int8", backend)).program
    large = [name for name, each in constants(program).items() if each.dtype is torch.float32 and each.numel() > 999]
    assert not large, large
    assert difference(program, model, x) < 0.1


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_a_convolution_that_is_padded_on_one_side_more_stays_in_float32() -> None:
    x = torch.randn(2, 16, 8, 8)
    model = captured(nn.Sequential(nn.Conv2d(16, 64, 2, padding="same"), nn.Conv2d(64, 16, 1)), None, x)
    program = method(converted(model, "int8")).program
    assert constants(program)["0.weight"].dtype is torch.float32
    assert "1.weight" not in constants(program)
    assert difference(program, model, x) < 0.1


def test_a_model_of_convolutions_without_calibration_is_refused_with_the_setting() -> None:
    pytest.importorskip("torchao")
    conversion = Conversion(captured(nn.Conv2d(16, 32, 3), None, torch.randn(2, 16, 8, 8)), SETTINGS, {})
    with pytest.raises(CaptureError, match="changes no operation") as caught:
        conversion.converted(Recipe("small", precision="int8"), ())
    assert "name inputs in `calibrate`" in caught.value.hint


def test_convolutions_without_calibration_stay_in_float32_as_the_note_says() -> None:
    pytest.importorskip("torchao")
    layers = nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 8))
    conversion = Conversion(captured(layers, None, torch.randn(2, 16, 8, 8)), SETTINGS, {})
    recipe = Recipe("small", (BackendChoice("onnxruntime"),), precision="int8")
    program = method(conversion.converted(recipe, ())).program
    assert next(conversion.notes(recipe)).startswith("1 convolution of `forward` in float32")
    (convolution,) = operations(program, "conv2d")
    assert not [each for each in convolution.all_input_nodes if "dequantize" in str(each.target)]
    assert [each for each in operations(program, "linear")[0].all_input_nodes if "dequantize" in str(each.target)]


class Mixed(nn.Module):
    """Layers of which a precision converts some."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 3)
        self.up = nn.ConvTranspose1d(32, 64, 4)
        self.last = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.last(self.up(self.conv(x).flatten(2)).transpose(1, 2))
        return hidden


@pytest.mark.parametrize("precision", ["int8", "int8-weights"])
def test_layers_that_a_precision_leaves_in_float32_are_named(precision: Precision) -> None:
    pytest.importorskip("torchao")
    model = captured(Mixed(), None, torch.randn(2, 16, 8, 8))
    cases = {"forward": [example_case(method(model))] * 2}
    conversion = Conversion(model, SETTINGS, cases)
    (line,) = conversion.notes(Recipe("small", precision=precision))
    assert line == f"`forward` in float32: `up` (conv_transpose1d), which `{precision}` leaves out"


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_a_bag_of_embeddings_that_stays_in_float32_is_named(precision: Precision) -> None:
    pytest.importorskip("torchao")
    model = captured(
        nn.Sequential(nn.EmbeddingBag(64, 32), nn.Linear(32, 32)), None, torch.zeros(2, 3, dtype=torch.int64)
    )
    (line,) = Conversion(model, SETTINGS, {}).notes(Recipe("small", precision=precision))
    assert line == f"`forward` in float32: `0` (embedding_bag), which `{precision}` leaves out"


def test_a_model_of_small_weights_is_refused_with_the_least_size() -> None:
    pytest.importorskip("torchao")
    model = captured(nn.Linear(32, 8), None, torch.randn(2, 32))
    with pytest.raises(CaptureError, match="changes no operation") as caught:
        converted(model, "int4-weights")
    assert "with 1,024 weights or more, can have another precision" in caught.value.hint


def test_layers_that_the_file_keeps_in_float32_are_not_named_again() -> None:
    pytest.importorskip("torchao")
    model = captured(Mixed(), None, torch.randn(2, 16, 8, 8))
    settings = replace(SETTINGS, kept={"small": ("up",)})
    assert list(Conversion(model, settings, {}).notes(Recipe("small", precision="int8-weights"))) == []


ALL = ["bfloat16", "int8", "int8-weights", "int4-weights"]


class Sequence(nn.Module):
    """A counter of calls, and a weight that another method replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("weight", torch.randn(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.layer(x) + nn.functional.linear(x, self.weight) * self.calls

    def put(self, weight: Tensor) -> Tensor:
        self.weight.copy_(weight)
        return self.layer(weight)


@pytest.mark.parametrize("precision", ["bfloat16", "int8-weights"])
def test_state_that_another_method_changes_is_not_frozen(precision: str) -> None:
    methods = {"forward": Method((torch.randn(2, 64),)), "put": Method((torch.randn(64, 64),))}
    model = capture_model("net", Model(Sequence().eval(), methods), Quiet())
    for each in converted(model, precision).methods:
        assert each.program.state_dict["weight"] is model.methods[0].program.state_dict["weight"]


def test_a_changing_weight_outside_of_modules_is_refused_for_integers() -> None:
    methods = {"forward": Method((torch.randn(2, 64),)), "put": Method((torch.randn(64, 64),))}
    model = capture_model("net", Model(Sequence().eval(), methods), Quiet())
    with pytest.raises(CaptureError, match="the weight of an operation changes in calls"):
        converted(model, "int8")


class Counted(nn.Module):
    """A counter of calls in one of two methods."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        result: Tensor = self.layer(x) * self.calls
        return result

    def plain(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        return result


def test_a_method_may_lack_the_state_that_another_method_changes() -> None:
    pytest.importorskip("torchao")
    methods = {name: Method((torch.randn(2, 64),)) for name in ("forward", "plain")}
    first, second = converted(capture_model("net", Model(Counted().eval(), methods), Quiet()), "int8").methods
    assert first.program.state_dict["calls"].tolist() == [0]
    assert "calls" not in second.program.state_dict


def test_calibration_leaves_the_state_of_the_model_and_of_its_conversion() -> None:
    model = captured(Net())
    assert model.eager is not None
    converted_net = converted(model, "int8")
    for program in (method(model).program, method(converted_net).program):
        assert program.state_dict["calls"].tolist() == [0]
    assert model.eager.get_buffer("calls").tolist() == [0]
    called = method(converted_net).program.module()
    called(torch.zeros(4, 6, dtype=torch.int64))
    assert called.calls.tolist() == [1]


@pytest.mark.parametrize("precision", ALL)
def test_a_layer_that_is_called_twice_has_its_weights_once(precision: str) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layer(self.layer(x))
            return result

    x = torch.randn(3, 64)
    model = captured(Twice(), None, x)
    program = method(converted(model, precision)).program
    large = [tensor for tensor in constants(program).values() if tensor.numel() >= 2048]
    assert len([each for each in large if each.dtype is not torch.float32]) == 1
    assert difference(program, model, x) < 0.2


@pytest.mark.parametrize("precision", ALL)
def test_weights_whose_names_differ_in_dots_alone_stay_apart(precision: str) -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.a_b = nn.Module(), nn.Module()
            self.a.b_c = nn.Linear(64, 64, bias=False)
            self.a_b.c = nn.Linear(64, 64, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.a.b_c(x) - self.a_b.c(x)
            return result

    x = torch.randn(3, 64)
    model = captured(Apart(), None, x)
    assert difference(method(converted(model, precision)).program, model, x) < 0.2


@pytest.mark.parametrize("precision", ALL)
def test_a_table_that_is_also_the_last_layer_computes_as_before(precision: str) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(100, 64), nn.Linear(64, 100, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            result: Tensor = self.head(self.table(ids))
            return result

    ids = torch.randint(0, 100, (2, 5))
    model = captured(Tied(), None, ids)
    assert model.eager is not None
    with torch.no_grad():
        greatest = float(model.eager(ids).abs().max())
    assert difference(method(converted(model, precision)).program, model, ids) / greatest < 0.1


def test_a_model_with_layers_in_half_precision_already_can_have_more() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64, dtype=torch.bfloat16)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.last(self.first(x).bfloat16())
            return result

    program = method(converted(captured(Mixed(), None, torch.randn(2, 64)), "bfloat16")).program
    assert {node.meta["val"].dtype for node in operations(program, "linear")} == {torch.bfloat16}


def test_an_integer_input_stays_dynamic() -> None:
    class Times(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Tensor, count: int) -> Tensor:
            result: Tensor = self.layer(x) * count
            return result

    shapes = {"x": None, "count": Dim.DYNAMIC}
    model = capture_model(
        "net", Model(Times().eval(), {"forward": Method((torch.randn(2, 64), 3), dynamic_shapes=shapes)}), Quiet()
    )
    module = method(converted(model, "int8-weights")).program.module()
    x = torch.randn(2, 64)
    torch.testing.assert_close(module(x, 7), module(x, 3) / 3 * 7)


def test_a_model_without_weights_is_refused_with_its_operators() -> None:
    model = captured(Pool(), None, torch.randn(2, 3, 8))
    with pytest.raises(CaptureError, match="changes no operation") as caught:
        converted(model, "bfloat16")
    assert "max_pool1d" in caught.value.found


@pytest.fixture
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[nn.Module, Tensor, Tensor], CapturedModel]:
    """Converts a module to `int8` after a single call for calibration."""

    def convert(module: nn.Module, example: Tensor, given: Tensor) -> CapturedModel:
        name = f"calls_{tmp_path.name}"
        (tmp_path / f"{name}.py").touch()
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(importlib.import_module(name), "calls", lambda method: [(given,)], raising=False)
        recipe = Recipe("small", precision="int8")
        settings = ModelSettings("net", "net:export", "net", ("small",), calibrate=f"{name}:calls")
        batch = ({0: Dim("batch", max=64)},)
        model = capture_model(
            "net", Model(module.eval(), {"forward": Method((example,), dynamic_shapes=batch)}), Quiet()
        )
        cases = calibration_cases(settings, [recipe], model, tmp_path, Quiet())
        return Conversion(model, settings, cases).converted(recipe, ())

    return convert


def test_a_call_for_calibration_that_fails_in_the_model_is_named(calibrated: Callable[..., CapturedModel]) -> None:
    pytest.importorskip("torchao")
    table = nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 64))
    with pytest.raises(SampleError, match="the model fails in a call for calibration") as caught:
        calibrated(table, torch.zeros(2, dtype=torch.int64), torch.full((2,), 50))
    assert caught.value.where.endswith(":calls, call 0")
    assert "index out of range" in caught.value.found


def test_a_call_for_calibration_without_numbers_is_refused(calibrated: Callable[..., CapturedModel]) -> None:
    with pytest.raises(SampleError, match="the inputs for calibration are empty") as caught:
        calibrated(nn.Linear(64, 64), torch.randn(2, 64), torch.randn(0, 64))
    assert caught.value.where.endswith(":calls, call 0")


def test_a_calibration_with_nan_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad_ranges.py").write_text(
        "import torch\ndef calls(method):\n    yield (torch.full((2, 64), float('nan')),)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = captured(nn.Linear(64, 64), None, torch.randn(2, 64))
    settings = ModelSettings("net", "net:export", "net", ("small",), calibrate="bad_ranges:calls")
    with pytest.raises(SampleError, match="NaN or infinity") as caught:
        calibration_cases(settings, [Recipe("small", precision="int8")], model, tmp_path, Quiet())
    assert "`calibrate`" in caught.value.where
