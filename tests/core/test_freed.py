"""Loaded models that go with the last reference: delegates, with their threads and memory, wait for no collector."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from support.loading import load_folder
from support.lowered import floats, lowered_model, write_lowered
from support.plans import (
    Doubling,
    c,
    call,
    constant,
    delegate_entry,
    graph,
    method,
    op,
    plan_value,
    python,
    tensor_input,
    v,
)
from torch import Tensor, nn

from hatch_lower import load
from hatch_lower.errors import InputError, ProgramError, UnavailableError
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.delegates import DelegateBlob
from hatch_lower.runtime.loaded import LoadedModel

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

VECTOR = tensor_input(4)
ADD = "aten.add.Tensor"
BLOB = "digits/delegates/blob.bin"
TENSORS = {"w": floats(1, 2, 3, 4), "count": floats(0, 0, 0, 0)}
CONSTANTS: dict[str, Any] = {
    "storages": [("w", "float32", 4), ("count", "float32", 4)],
    "constants": {"w": constant(0, 4), "count": constant(1, 4, mutable=True)},
}
ENGINES = {
    "aoti": "aoti.compile:AotiBackend",
    "executorch": "executorch.compile:ExecutorchBackend",
    "onnxruntime": "onnxruntime.compile:OnnxruntimeBackend",
    "openvino": "openvino.compile:OpenvinoBackend",
    "reference": "reference.compile:ReferenceBackend",
}


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def things_of(model: LoadedModel) -> list[weakref.ref[Any]]:
    """Return references to what holds a model's memory, of which all are dead once the model is."""
    executor: Any = model._runnable
    methods = model.methods.values()
    return [weakref.ref(thing) for thing in (executor, *executor._delegates, *methods)]


def alive(references: Sequence[weakref.ref[Any]]) -> list[object]:
    return [thing for reference in references if (thing := reference()) is not None]


def packaged(folder: Path, **recipes: Any) -> Path:
    models = {"digits": lowered_model(folder, "digits", recipes, tensors=TENSORS)}
    return write_lowered(folder, models)


def delegated(entries: Sequence[dict[str, Any]], *methods: str) -> dict[str, Any]:
    # of two delegates, the second in a branch of a branch: functions of their own
    body = [call(0, [v(0)], [VECTOR], 1), python("getitem", v(1), 0, out=2), op(ADD, v(2), c("w"), out=3)]
    branch = graph(1, [call(1, [v(0)], [VECTOR], 5), python("getitem", v(5), 0, out=6)], v(6))
    other = graph(1, [op(ADD, v(0), c("count"), out=5)], v(5))
    outer = graph(
        1,
        [
            op("aten.sum.default", v(0), out=10),
            op("aten.gt.Scalar", v(10), 0, out=11),
            {"kind": "cond", "predicate": v(11), "true": branch, "false": other, "args": [v(0)], "out": 12},
            python("getitem", v(12), 0, out=13),
        ],
        v(13),
    )
    body += [
        op("aten.sum.default", v(3), out=20),
        op("aten.gt.Scalar", v(20), 0, out=21),
        {"kind": "cond", "predicate": v(21), "true": outer, "false": other, "args": [v(3)], "out": 22},
        python("getitem", v(22), 0, out=23),
    ]
    counting = [op(ADD, c("count"), 1, out=30)]
    return plan_value(
        {
            name: method([VECTOR], [*body, *counting], v(23), mutations=[("count", v(30))])
            for name in methods or ("forward",)
        },
        delegates=list(entries),
        **CONSTANTS,
    )


OWN_STATE = {**delegate_entry("doubling"), "info": {"stateful": True}}
BOUND = delegate_entry("doubling", "w", "count")


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("methods", [("forward",), ("forward", "embed"), ("embed", "count")])
def test_delegates_of_a_model_go_with_it(tmp_path: Path, methods: tuple[str, ...]) -> None:
    plan = delegated([BOUND, OWN_STATE], *methods)
    folder = packaged(tmp_path / "_lowered", default={"plan": plan, "blobs": {BLOB: b"code"}})
    model = load_folder(folder, "digits", delegates={"doubling": Doubling})
    method = model[methods[0]]
    assert method(torch.ones(4)).tolist() == [6, 8, 10, 12]
    with torch.autocast("cpu"):
        method(torch.ones(4))
    if "forward" not in methods:
        with pytest.raises(InputError, match="no method `forward`"):
            model(torch.ones(4))
    with pytest.raises(InputError):
        method(torch.ones(3))
    copied = copy.copy(model)
    clone = model.clone()
    clone[methods[0]](torch.ones(4))
    replaced = weakref.ref(model._runnable._delegates[1])  # type: ignore[attr-defined]
    model.reset()
    assert replaced() is None
    of_clone, of_model = things_of(clone), things_of(model)
    assert alive(of_clone)
    assert alive(of_model)
    del clone
    assert alive(of_clone) == []
    del model, method
    assert alive(of_model) != []
    del copied
    assert alive(of_model) == []


class Refusing(Doubling):
    """Loads the first time, and refuses from then on."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Refusing:
        made: Refusing = super().__new__(cls)
        cls.made.append(weakref.ref(made))
        return made

    made: list[weakref.ref[Any]]
    error: type[Exception]

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> Doubling:
        if cls.made:
            if issubclass(cls.error, ProgramError):
                raise cls.error("no `GPU` here", found="CPU only", hint="install a driver")
            raise cls.error("wrong ELF class")
        return super().load(blob, constants)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("error", [OSError, ProgramError, UnavailableError])
def test_delegates_of_a_load_that_fails_go_with_the_error(tmp_path: Path, error: type[Exception]) -> None:
    kind = type("Kind", (Refusing,), {"made": [], "error": error})
    recipe = {"plan": delegated([BOUND, OWN_STATE]), "blobs": {BLOB: b"code"}}
    folder = packaged(tmp_path / "_lowered", default=recipe)
    text = ""
    try:
        load_folder(folder, "digits", delegates={"doubling": kind})
    except ProgramError as caught:
        text = str(caught)
    assert text
    assert len(kind.made) == 1
    assert alive(kind.made) == []


@pytest.mark.usefixtures("no_collector")
def test_delegates_of_a_recipe_that_was_passed_over_go_at_once(tmp_path: Path) -> None:
    kind = type("Kind", (Refusing,), {"made": [], "error": UnavailableError})
    portable = plan_value(forward=method([VECTOR], [op(ADD, v(0), c("w"), out=1)], v(1)), **CONSTANTS)
    recipes = {
        "gpu": {"plan": delegated([BOUND, OWN_STATE]), "blobs": {BLOB: b"code"}},
        "portable": {"plan": portable},
    }
    folder = packaged(tmp_path / "_lowered", **recipes)
    with pytest.warns(RuntimeWarning, match="`gpu` cannot run here"):
        model = load_folder(folder, "digits", delegates={"doubling": kind})
    assert model.recipe == "portable"
    assert len(kind.made) == 1
    assert alive(kind.made) == []
    of_model = things_of(model)
    del model
    assert alive(of_model) == []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.register_buffer("count", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1  # type: ignore[has-type]
        result: Tensor = self.linear(x).relu() + self.count
        return result


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_loads_goes_with_the_model(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine in ("executorch", "onnxruntime", "openvino") and find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")
    monkeypatch.setenv("HATCH_LOWER_CACHE", "off")
    module, _, name = ENGINES[engine].partition(":")
    partitioner = getattr(import_module(f"hatch_lower.backends.{module}"), name).partitioner({})
    x = torch.ones(2, 64)
    program = torch.export.export(Net().eval(), (x,))
    lowered = to_edge_transform_and_lower(program, partitioner=[partitioner]).to_executorch()
    folder = save_program(lowered, tmp_path / "model")
    model = load(folder)
    model(x)
    clone = model.clone()
    model.reset()
    torch.testing.assert_close(clone(x), model(x) + 1)
    references = [*things_of(model), *things_of(clone)]
    assert len(references) == 6  # an executor, a delegate and a method of each
    del model, clone
    assert alive(references) == []
