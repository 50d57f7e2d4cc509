"""An index that is out of range: as in eager an error of that call, after which the model goes on, on every engine."""

from __future__ import annotations

import copy
import threading
import traceback
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.exports import Workshop, packaged, settings_of, write_folder
from torch import Tensor, nn

from hatch_lower import load
from hatch_lower.backends.aoti.record import contain_errors
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import BackendError, CallError, IndexRangeError, ProgramError
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.loaded import LoadedModel

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "aoti": ("aoti.compile:AotiBackend", {}),
    "executorch": ("executorch.compile:ExecutorchBackend", {"portable-operators": True}),
    "onnxruntime": ("onnxruntime.compile:OnnxruntimeBackend", {}),
    "openvino": ("openvino.compile:OpenvinoBackend", {}),
    "reference": ("reference.compile:ReferenceBackend", {}),
    "portable": ("", {}),
}
ROWS = 10


class Lookups(nn.Module):
    """Looks up in a small and a large table, in part of the indices, and in the other ways that there are."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Embedding(ROWS, 4), nn.Embedding(ROWS, 3000)
        self.register_buffer("table", torch.randn(ROWS, 3))
        self.register_buffer("positions", torch.arange(ROWS))

    def forward(
        self, i: Tensor, j: Tensor, k: Tensor, m: Tensor, n: Tensor, o: Tensor, p: Tensor
    ) -> tuple[Tensor, ...]:
        counted = self.small(torch.arange(i.shape[0])) + self.small(self.positions[: i.shape[0]])
        return (
            self.small(i).relu() + counted,
            self.large(j[1:]).sum(0),
            self.table.index_select(0, k) + 1,
            self.table.gather(0, m.view(1, 3)) + 1,
            self.table[n] + 1,
            (self.table + 1).index_put((o,), self.table[:3]),
            F.one_hot(p, ROWS) + 1.0,
        )


def saved(module: nn.Module, engine: str, folder: Path, *arguments: Tensor) -> LoadedModel:
    place, options = ENGINES[engine]
    partitioners = []
    if place:
        name, _, backend = place.partition(":")
        partitioners = [getattr(import_module(f"hatch_lower.backends.{name}"), backend).partitioner(options)]
    program = torch.export.export(module.eval(), arguments)
    lowered = to_edge_transform_and_lower(program, partitioner=partitioners).to_executorch()
    return load(save_program(lowered, folder / "model"))


def outcome(function: Callable[..., Any], arguments: list[Tensor]) -> Any:
    try:
        return function(*copy.deepcopy(arguments))
    except (IndexError, RuntimeError):
        return "refused"


GOOD = [torch.tensor([1, 2, 3]) for _ in range(7)]


@pytest.fixture(scope="module")
def lookups(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[nn.Module, LoadedModel]]:
    """Returns `Lookups`, and what it is on an engine."""

    @cache
    def lowered(engine: str) -> tuple[nn.Module, LoadedModel]:
        module = Lookups()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HATCH_LOWER_CACHE", "off")
            return module, saved(module, engine, tmp_path_factory.mktemp(engine), *GOOD)

    return lowered


@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=[pytest.mark.rest] if name == "aoti" else []) for name in ENGINES]
)
def test_a_bad_index_is_an_error_of_that_call(
    lookups: Callable[[str], tuple[nn.Module, LoadedModel]], engine: str
) -> None:
    if engine in ("executorch", "onnxruntime", "openvino") and find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")
    module, model = lookups(engine)
    good, expected = GOOD, module(*GOOD)
    refused = 0
    for place in range(len(good)):
        for wrong in (ROWS, -1, -ROWS - 1, 2**32 + 1, -(2**63)):
            bad = [*good[:place], torch.tensor([1, 2, wrong]), *good[place + 1 :]]
            eager, found = outcome(module, bad), outcome(model, bad)
            refused += eager == "refused"
            assert (found == "refused") is (eager == "refused"), f"argument {place}: {wrong}"
            if eager != "refused":
                torch.testing.assert_close(found, eager)
            torch.testing.assert_close(model(*good), expected)
    assert refused == 7 * 5 - 2


@pytest.mark.rest  # half a minute of the compiler
def test_a_bad_index_in_one_thread_lets_others_go_on(
    lookups: Callable[[str], tuple[nn.Module, LoadedModel]],
) -> None:
    _, model = lookups("aoti")
    good, bad = GOOD, [torch.tensor([1, 2, ROWS]), *GOOD[1:]]
    with pytest.raises(CallError, match="an index is out of range") as caught:
        model(*bad)
    assert caught.value.where == "`i` of method `forward`"
    assert caught.value.found == "10 at [2], where a table has 10 rows"
    done: list[Any] = []
    threads = [
        threading.Thread(target=lambda i=i: done.extend(outcome(model, i) for _ in range(300)), daemon=True)
        for i in (good, bad, good, bad)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 1200


@pytest.mark.rest  # half a minute of the compiler
@pytest.mark.parametrize("place", range(6))  # the seventh, `one_hot`, is computed by torch itself
def test_a_bad_index_is_told_once_and_without_frames_of_torch(
    lookups: Callable[[str], tuple[nn.Module, LoadedModel]], place: int, capfd: pytest.CaptureFixture[str]
) -> None:
    _, model = lookups("aoti")
    capfd.readouterr()
    with pytest.raises(CallError) as caught:
        model(*GOOD[:place], torch.tensor([1, 2, ROWS]), *GOOD[place + 1 :])
    assert capfd.readouterr() == ("", "")
    told = "".join(traceback.format_exception(caught.value))
    assert "frame #" not in told
    assert "Exception raised from" not in told
    assert told.count("Traceback") == 2  # the call's, and before it the library's with the same words
    assert len(caught.value.found.splitlines()) == 1
    exact = isinstance(caught.value, IndexRangeError)
    assert exact or "out of" in caught.value.found
    assert exact or caught.value.hint == "look at the values of the arguments: an index is out of range"


def test_onnxruntime_tells_a_bad_index_in_the_error_alone(
    lookups: Callable[[str], tuple[nn.Module, LoadedModel]], capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    _, model = lookups("onnxruntime")
    capfd.readouterr()
    with pytest.raises(CallError, match="an index is out of range") as caught:
        model(torch.tensor([1, 2, -1]), *GOOD[1:])
    assert capfd.readouterr() == ("", "")
    assert caught.value.where == "`i` of method `forward`"
    assert caught.value.found == "-1 at [2], where a table has 10 rows"


KERNELS = """\
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  plain(float* out_ptr0)
{
    #pragma omp parallel
    {
        #pragma omp for
        for(int64_t x0=0; x0<9; x0+=1)
        {
            out_ptr0[x0] = 1;
        }
    }
}

extern "C"  void  checked(float* out_ptr0)
{
    #pragma omp parallel
    {
        #pragma omp for collapse(2)
        for(int64_t x0=0; x0<9; x0+=1)
        {
            for(int64_t x1=0; x1<9; x1+=1)
            {
                AOTI_TORCH_CHECK(x0 < 5, "index out of bounds");
            }
        }
        #pragma omp single
        {
            AOTI_TORCH_CHECK(false, "index out of bounds");
        }
    }
}
"""


BAGS = ["portable", "reference", pytest.param("aoti", marks=pytest.mark.rest)]


@pytest.mark.parametrize("engine", BAGS)
@pytest.mark.parametrize("mode", ["sum", "max"])
def test_an_index_that_a_bag_lacks_is_an_error_with_the_index(tmp_path: Path, engine: str, mode: str) -> None:
    offsets = torch.tensor([0, 2])
    model = saved(nn.EmbeddingBag(ROWS, 4, mode=mode), engine, tmp_path, torch.tensor([1, 2, 3]), offsets)
    for wrong in (-1, ROWS):
        with pytest.raises(CallError) as caught:
            model(torch.tensor([1, wrong, 3]), offsets)
        assert str(wrong) in (caught.value.found or "")
        if isinstance(caught.value, IndexRangeError):
            assert caught.value.where == "`input` of method `forward`"
            assert caught.value.hint == f"give indices from 0 to {ROWS - 1}"
        else:  # the words of the compiled code do not have the number of rows
            assert (engine, mode) == ("aoti", "max")
            assert caught.value.hint == "look at the values of the arguments: an index is out of range"


def test_no_error_leaves_a_loop_that_threads_share() -> None:
    head, plain, checked = contain_errors(KERNELS).split('extern "C"')
    assert "struct FirstError" in head
    assert plain == KERNELS.split('extern "C"')[1]
    opened, kept = "{ try {", "} catch (...) { first_error.keep(); } }"
    assert f"            {opened}\n                AOTI_TORCH_CHECK(x0 < 5" in checked
    assert f"        {opened}\n            AOTI_TORCH_CHECK(false" in checked
    assert checked.count(opened) == checked.count(kept) == 2
    assert checked.endswith("    first_error.raise();\n}\n")


def test_kernels_without_checks_stay_as_they_are() -> None:
    plain = KERNELS.split('extern "C"  void  checked')[0]
    assert contain_errors(plain) == plain


def test_code_of_another_form_is_refused() -> None:
    with pytest.raises(BackendError, match="inductor's code has an unknown form"):
        contain_errors(KERNELS.replace("omp single\n", "omp single nowait\n        \n").replace(" nowait", ""))


class Table(nn.Module):
    """Weights, and indices into them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor([[1.0], [2.0]]))
        self.register_buffer("indices", torch.tensor([0, 1, 1]))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weights[self.indices]


def test_integers_are_compared_when_a_program_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    saved(Table(), "portable", tmp_path, torch.zeros(3, 1))
    path = folder / "model/constants.safetensors"
    whole = path.read_bytes()

    def damage(before: Tensor, after: Tensor) -> None:
        path.write_bytes(whole.replace(before.numpy().tobytes(), after.numpy().tobytes()))

    damage(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(load(folder)(torch.zeros(3, 1)), torch.tensor([[1.0], [3.0], [3.0]]))
    damage(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 2**40]))
    with pytest.raises(ProgramError, match="damaged") as caught:
        load(folder)
    assert caught.value.found == "different integers than in the build"


class Refusing(nn.Module):
    """Has operations that refuse values other than indices."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, 4)

    def forward(self, o: Tensor, c: Tensor, w: Tensor, r: Tensor, d: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        return (
            self.bag(torch.arange(4), o),
            torch.bincount(c, minlength=3),
            torch.multinomial(w, 1),
            torch.repeat_interleave(m[0], r, output_size=4),
            8 // d,
            torch.linalg.svdvals(m),
        )


def test_a_refused_value_is_a_fault_of_the_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE", "off")
    good = [
        torch.tensor([0, 2]),
        torch.tensor([1, 2]),
        torch.ones(2),
        torch.tensor([2, 2]),
        torch.tensor(2),
        torch.eye(2),
    ]
    model = saved(Refusing(), "reference", tmp_path, *good)
    wrong = {
        0: [torch.tensor([1, 2]), torch.tensor([0, 7])],
        1: [torch.tensor([1, -2])],
        2: [torch.zeros(2), torch.tensor([1.0, -1.0])],
        3: [torch.tensor([5, -1]), torch.tensor([5, 1])],
        4: [torch.tensor(0)],
        5: [torch.full((2, 2), float("nan"))],
    }
    for place, values in wrong.items():
        for value in values:
            with pytest.raises(CallError, match="the delegate `reference` failed") as caught:
                model(*good[:place], value, *good[place + 1 :])
            assert caught.value.hint == (
                "look at the values of the arguments: an operation of the model does not take them"
            ), caught.value.found
    assert len(model(*good)) == 6


LOSS = """\
import torch
from hatch_lower import Method, Model


class Net(torch.nn.Module):
    def forward(self, x, y):
        return torch.nn.functional.binary_cross_entropy(x, y)


def export():
    return Model(Net().eval(), {"forward": Method((torch.tensor([0.2, 0.7]), torch.tensor([0.0, 1.0])))})
"""


def test_a_recipe_without_backends_makes_eagers_checks(tmp_path: Path) -> None:
    recipes = Recipe("portable"), Recipe("reference", (BackendChoice("reference"),))
    folder = write_folder(tmp_path / "_lowered", packaged(Workshop(tmp_path), LOSS, settings_of(*recipes)))
    wrong = torch.tensor([1.5, 0.7]), torch.tensor([0.0, 1.0])
    with pytest.raises(RuntimeError, match="all elements of input should be between 0 and 1"):
        load(folder, recipe="portable")(*wrong)
    assert load(folder, recipe="reference")(*wrong).isnan()


@pytest.mark.rest
def test_aoti_takes_a_negative_count(tmp_path: Path) -> None:
    class Repeat(nn.Module):
        def forward(self, x: Tensor, counts: Tensor) -> Tensor:
            return torch.repeat_interleave(x, counts, output_size=4)

    model = saved(Repeat(), "aoti", tmp_path, torch.ones(2), torch.tensor([2, 2]))
    assert model(torch.ones(2), torch.tensor([5, -1])).shape == (4,)
