"""The device of a recipe and its program: choice, reasons, wrong devices. No test here needs a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

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
    method,
    op,
    plan_of,
    plan_value,
    python,
    tensor_input,
    v,
)

from hatch_lower.errors import CallError, InputError, LowerError, ProgramError, UnavailableError
from hatch_lower.format.constants import TargetEntry
from hatch_lower.format.manifest import FileEntry, RecipeEntry
from hatch_lower.runtime import torch_arrays
from hatch_lower.runtime.arrays import find_arrays
from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.runtime.devices import Placement, place_recipe, read_device, runs_on
from hatch_lower.runtime.executor import Executor, execute_plan
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.refusals import device_failed
from hatch_lower.runtime.selection import DelegateKinds
from hatch_lower.runtime.torch_arrays import TorchArrays
from hatch_lower.runtime.torch_operators import creates_tensors, placed_function
from hatch_lower.runtime.torch_private import cuda

pytestmark = pytest.mark.torch

FILE = FileEntry("a", 0, "0" * 64)
VECTOR = tensor_input(4)
BLOB = "digits/delegates/blob.bin"
TENSORS = {"w": floats(1, 2, 3, 4)}
WEIGHTS: dict[str, Any] = {"storages": [("w", "float32", 4)], "constants": {"w": constant(0, 4)}}


class OnGpu(Doubling):
    """Takes tensors on a GPU only."""

    devices = ("cuda",)


class Copying(Doubling):
    """Copies arrays of the CPU to a GPU by itself."""

    devices = ("cpu", "cuda")
    loaded: ClassVar[list[DelegateBlob]] = []

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Any]) -> Copying:
        cls.loaded.append(blob)
        return cls(constants)


KINDS = DelegateKinds({"gpu": OnGpu, "copying": Copying})


def recipe_of(*backends: str, device: Any = "cuda", **target: Any) -> RecipeEntry:
    needed = TargetEntry("Linux", "x86_64", "x86-64", **target) if target else None
    return RecipeEntry(FILE, FILE, (), backends, (), needed, {}, (), device)


def machine(
    monkeypatch: pytest.MonkeyPatch, version: str = "13.0", count: int = 2, capability: tuple[int, int] = (8, 0)
) -> None:
    monkeypatch.setattr(cuda, "cuda_version", lambda: version)
    monkeypatch.setattr(cuda, "count_gpus", lambda: (count, "" if count else "the driver is too old"))
    monkeypatch.setattr(cuda, "current_gpu", lambda: 1)
    monkeypatch.setattr(cuda, "capability_of", lambda index: capability)


def place(recipe: RecipeEntry, device: str | None = None, arrays: str = "torch") -> Placement | str:
    return place_recipe(recipe, device, find_arrays(arrays), KINDS)


# the choice of a device


@pytest.mark.parametrize(
    ("recipe", "device", "expected"),
    [
        (recipe_of("gpu"), None, "cuda:1"),
        (recipe_of("gpu"), "cuda", "cuda:1"),
        (recipe_of("gpu"), "cuda:0", "cuda:0"),
        (recipe_of(device="cpu"), None, "cpu"),
        (recipe_of(device="cpu"), "cpu", "cpu"),
        (recipe_of(device="cpu"), "cuda:0", "cuda:0"),
        (recipe_of("aoti", device="cpu"), None, "cpu"),
    ],
)
def test_a_recipe_runs_on_its_device_and_a_portable_recipe_on_any(
    recipe: RecipeEntry, device: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch)
    assert place(recipe, device) == Placement(expected, expected)


@pytest.mark.parametrize(
    ("recipe", "device", "facts", "reason"),
    [
        (recipe_of("gpu"), "cpu", {}, "its device is `cuda`, and `device` is 'cpu'"),
        (recipe_of("aoti", device="cpu"), "cuda", {}, "its device is `cpu`, and `device` is 'cuda'"),
        (recipe_of("gpu"), None, {"version": ""}, "this torch has no CUDA"),
        (recipe_of("gpu"), None, {"count": 0}, "there is no GPU that torch can use: the driver is too old"),
        (recipe_of("gpu"), "cuda:7", {}, "there is no GPU with the index 7, only 2 GPUs"),
        (recipe_of("gpu"), "cuda:1", {"count": 1}, "there is no GPU with the index 1, only 1 GPU"),
        (
            recipe_of("gpu", cuda="13"),
            None,
            {"version": "12.8"},
            "it was compiled for CUDA 13, and this torch has CUDA 12",
        ),
        (
            recipe_of("gpu", arch=("sm_80", "sm_90"), ptx="compute_80"),
            None,
            {"capability": (7, 5)},
            "it needs sm_80 or later, and this GPU is sm_75",
        ),
        (
            recipe_of("gpu", arch=("sm_80", "sm_90")),
            None,
            {"capability": (12, 0)},
            "it was compiled for sm_80, sm_90, and this GPU is sm_120",
        ),
        (recipe_of("gpu", arch=("gfx90a",)), None, {}, "its GPU architecture `gfx90a` is unknown here"),
    ],
)
def test_the_reason_why_a_recipe_cannot_run_on_a_gpu(
    recipe: RecipeEntry, device: str | None, facts: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, **facts)
    assert place(recipe, device) == reason


def test_the_driver_is_not_asked_if_the_manifest_or_torch_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    machine(monkeypatch, version="12.8")
    monkeypatch.setattr(cuda, "count_gpus", lambda: asked.append(1) or (0, ""))
    monkeypatch.setattr(cuda, "capability_of", asked.append)
    assert isinstance(place(recipe_of("gpu"), "cpu"), str)
    assert isinstance(place(recipe_of("gpu", cuda="13")), str)
    assert asked == []
    assert place(recipe_of("gpu", arch=("sm_80",))) == "there is no GPU that torch can use"
    assert asked == [1]


def test_the_chosen_gpu_decides_among_gpus_of_different_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    monkeypatch.setattr(cuda, "capability_of", lambda index: [(9, 0), (7, 5)][index])
    recipe = recipe_of("gpu", arch=("sm_80", "sm_90"))
    assert place(recipe, "cuda:0") == Placement("cuda:0", "cuda:0")
    assert place(recipe, "cuda:1") == place(recipe) == "it needs sm_80 or later, and this GPU is sm_75"


@pytest.mark.parametrize(
    ("code", "found", "expected"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (9, 1), False),
        ("sm_100f", (10, 3), True),
        ("sm_100f", (11, 0), False),
        ("compute_80", (12, 0), True),
        ("compute_80", (7, 5), False),
        ("compute_90a", (12, 0), False),
        ("sm_8", (8, 0), False),
    ],
)
def test_code_runs_on_gpus_by_the_rules_of_cuda(code: str, found: tuple[int, int], expected: bool) -> None:
    assert runs_on(code, found) is expected


def test_a_process_that_was_forked_from_one_with_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    monkeypatch.setattr(cuda, "fork_test", lambda: lambda: True)
    assert place(recipe_of("gpu")) == (
        "this process was forked from a process that had used the GPU: start processes with `spawn`"
    )


def test_engines_that_copy_arrays_need_no_cuda_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    assert place(recipe_of("copying"), "cuda:1", "numpy") == Placement("cpu", "cuda:1")
    assert place(recipe_of("gpu"), None, "numpy") == "on cuda its arrays are tensors, and `arrays` is 'numpy'"
    assert place(recipe_of(device="cpu"), "cuda", "numpy") == "on cuda its arrays are tensors, and `arrays` is 'numpy'"
    machine(monkeypatch, version="")
    assert place(recipe_of("copying")) == Placement("cpu", "cuda:0")
    assert place(recipe_of("copying", "gpu")) == "this torch has no CUDA"


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cuda:01", "CUDA", "cpu:0", 0, torch.device("meta")])
def test_an_unknown_device_is_refused(device: Any) -> None:
    with pytest.raises(InputError) as caught:
        read_device(device)
    assert str(caught.value) == (
        '`device` is "cpu", "cuda", or "cuda:" with the index of a GPU\n'
        f"  found: {device!r}\n"
        "  to do: omit `device`: then each recipe runs on its own device"
    )


def test_a_device_of_torch_is_a_device() -> None:
    assert [read_device(each) for each in (None, "cuda:12", torch.device("cuda:1"), torch.device("cpu"))] == [
        None,
        "cuda:12",
        "cuda:1",
        "cpu",
    ]


# loading


def both_devices(folder: Path) -> Path:
    body = [call(0, [v(0)], [VECTOR], 1), python("getitem", v(1), 0, out=2)]
    delegated = plan_value(forward=method([VECTOR], body, v(2)), delegates=[delegate_entry("gpu", "w")], **WEIGHTS)
    portable = plan_value(forward=method([VECTOR], [op("aten.mul.Tensor", v(0), c("w"), out=1)], v(1)), **WEIGHTS)
    recipes = {"gpu": {"plan": delegated, "blobs": {BLOB: b"code"}, "device": "cuda"}, "portable": {"plan": portable}}
    return write_lowered(folder, {"digits": lowered_model(folder, "digits", recipes, tensors=TENSORS)})


def load_here(folder: Path, **fields: Any) -> LoadedModel:
    return load_folder(folder, "digits", delegates={"gpu": OnGpu}, **fields)


def test_without_cuda_the_next_recipe_is_taken_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, version="")
    folder = both_devices(tmp_path)
    with pytest.warns(RuntimeWarning) as warned:
        model = load_here(folder)
    assert (model.recipe, model.device) == ("portable", "cpu")
    (warning,) = warned
    assert str(warning.message) == (
        "model `digits` runs recipe `portable` because `gpu` cannot run here: this torch has no CUDA"
    )
    with pytest.raises(ProgramError) as caught:
        load_here(folder, device="cuda")
    assert str(caught.value) == (
        "model `digits` cannot run here\n"
        "  found: `gpu`: this torch has no CUDA\n"
        "    `portable`: this torch has no CUDA\n"
        "  to do: install the named packages, or another wheel of the distribution"
    )
    with pytest.raises(ProgramError) as caught:
        load_here(folder, recipe="gpu")
    assert caught.value.hint == (
        "install torch's build for CUDA and the GPU's driver, or load a recipe for another device"
    )


def test_a_recipe_for_another_device_than_the_asked_one_is_left_out_without_a_warning(tmp_path: Path) -> None:
    folder = both_devices(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = load_here(folder, device="cpu")
    assert (model.recipe, model.device) == ("portable", "cpu")
    assert model(torch.ones(4)).tolist() == [1, 2, 3, 4]
    for refused in (lambda: load_here(folder, device="cpu", recipe="gpu"), lambda: model.in_recipe("gpu")):
        with pytest.raises(ProgramError, match="`gpu`: its device is `cuda`, and `device` is 'cpu'"):
            refused()


def test_a_model_that_is_sent_keeps_its_device(tmp_path: Path) -> None:
    model = load_here(both_devices(tmp_path), device="cpu")
    assert model.__reduce__()[1][1:] == ("portable", "torch", "cpu")


def test_a_manifest_with_another_device_than_the_delegates_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch)
    folder = both_devices(tmp_path)
    with pytest.raises(ProgramError) as caught:
        load_folder(folder, "digits", "gpu", delegates={"gpu": Doubling})
    assert str(caught.value) == (
        "the backend `gpu` does not compute on the device of the recipe\n"
        f"  where: {BLOB}\n"
        "  found: arrays on cuda:1; its run half takes cpu\n"
        "  to do: this is a fault of the backend: report it to its authors"
    )


# programs on another device


def program(
    arrays: TorchArrays, value: Any, *spans: torch.Tensor, delegates: dict[str, type[Delegate]] | None = None
) -> Executor:
    return execute_plan(plan_of(value), spans, delegates or {}, Path("/nowhere"), arrays=arrays)


def relu(device: str) -> Executor:
    value = plan_value(forward=method([VECTOR], [op("aten.relu.default", v(0), out=1)], v(1)))
    return program(TorchArrays(device, device), value)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch for the CPU has no kernels for CUDA
    monkeypatch.setattr("hatch_lower.runtime.torch_operators.has_gpu_kernel", lambda operator, kind: True)


def test_an_input_on_the_cpu_is_refused_by_a_model_on_a_gpu(kernels: None) -> None:
    model = relu("cuda:0")
    with pytest.raises(InputError) as caught:
        model.methods["forward"](torch.ones(4))
    assert str(caught.value) == (
        "method `forward` takes float32[4] for `x0`\n"
        "  found: float32[4]: on the device cpu, which must be cuda:0\n"
        '  to do: move the tensor to the model\'s device: `x0.to("cuda:0")`'
    )


def test_an_input_on_a_gpu_is_refused_by_a_model_on_the_cpu() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    arrays, (entry,) = TorchArrays(), plan_of(plan_value(forward=method([VECTOR], [], v(0)))).methods["forward"].inputs
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = torch.empty(4, device="cuda:0")
    assert arrays.kind_mismatch(entry, given) == "on the device cuda:0, which must be the CPU"
    assert arrays.conversion_hint(given, "image") == 'pass `image.cpu()`, or load the model with `device="cuda"`'
    assert TorchArrays("cuda:1").kind_mismatch(entry, given) == "on the device cuda:0, which must be cuda:1"


def test_code_for_the_cpu_has_no_trace_of_other_devices(kernels: None) -> None:
    here, there = relu("cpu").source("forward"), relu("cuda:0").source("forward")
    assert "is_cpu" in here
    assert not any(word in here for word in ("place", "is_forked", "device_failed"))
    assert "is_cpu" not in there
    assert all(word in there for word in ("place", "is_forked", "device_failed"))


def test_constants_and_state_are_on_the_device_of_the_program() -> None:
    value = plan_value(
        forward=method([VECTOR], [op("aten.add.Tensor", c("count"), c("w"), out=1)], v(1), mutations=[("count", v(1))]),
        storages=[("w", "float32", 4), ("count", "float32", 4), ("unused", "float32", 4)],
        constants={"w": constant(0, 4), "count": constant(1, 4, mutable=True), "unused": constant(2, 4)},
    )
    model = program(TorchArrays("meta"), value, *(torch.ones(4) for _ in range(3)))
    assert {name: each.device.type for name, each in model._constants.items()} == {
        "w": "meta",
        "count": "meta",
        "unused": "cpu",
    }
    assert model.clone()._constants["w"] is model._constants["w"]
    assert model.clone()._constants["count"] is not model._constants["count"]
    model.reset()
    assert model._state[1].device.type == "meta"
    assert model._program.spans[1].device.type == "cpu"


class OnMeta(Copying):
    devices = ("cpu", "meta")
    constants_on = "host"


class OnMetaItself(OnMeta):
    constants_on = "device"


@pytest.mark.parametrize(("kind", "expected"), [(OnMeta, "cpu"), (OnMetaItself, "meta")])
def test_an_engine_is_given_constants_where_it_wants_them(kind: type[Copying], expected: str) -> None:
    body = [call(0, [v(0)], [VECTOR], 1), python("getitem", v(1), 0, out=2)]
    value = plan_value(forward=method([VECTOR], body, v(2)), delegates=[delegate_entry("x", "w")], **WEIGHTS)
    kind.loaded.clear()
    model = program(TorchArrays("meta", "meta"), value, torch.ones(4), delegates={"x": kind})
    (delegate,) = model._delegates
    assert isinstance(delegate, Copying)
    assert [each.device.type for each in delegate.constants] == [expected]
    assert [(blob.device, blob.computes_on) for blob in kind.loaded] == [("meta", "meta")]
    assert "place" in model.source("forward"), "a computed tensor on another device does not reach the delegate"


def test_an_engine_with_its_own_copies_takes_no_state() -> None:
    body = [call(0, [v(0)], [VECTOR], 1), python("getitem", v(1), 0, out=2)]
    value = plan_value(
        forward=method([VECTOR], body, v(2)),
        delegates=[delegate_entry("x", "w")],
        storages=WEIGHTS["storages"],
        constants={"w": constant(0, 4, mutable=True)},
    )
    with pytest.raises(ProgramError, match="the backend `x`, which copies constants to the GPU itself"):
        program(TorchArrays("meta"), value, torch.ones(4), delegates={"x": OnMeta})


def test_the_device_of_a_plan_is_the_programs_device() -> None:
    value = plan_value(
        forward=method(
            [VECTOR],
            [
                op("aten.full.default", (4,), 2.0, out=1, device={"device": "cpu"}),
                op("aten.ones.default", (4,), out=2),
                op("aten.add.Tensor", v(1), v(2), out=3),
            ],
            v(3),
        )
    )
    model = program(TorchArrays("meta"), value)
    names = model._program.codes["forward"].names.objects
    functions = {key.split("_")[1]: each for key, each in names.items() if key.startswith(("_full", "_ones"))}
    assert functions["ones"]([4]).device.type == "meta"
    assert functions["full"]([4], 2.0).device.type == "meta"
    assert torch.device("meta") in names.values()


def test_factories_are_operators_with_a_device_and_without_tensors() -> None:
    aten = torch.ops.aten
    assert creates_tensors(aten.full.default)
    assert creates_tensors(aten.arange.start_step)
    assert not any(map(creates_tensors, (aten.zeros_like.default, aten._to_copy.default, aten.add.Tensor)))


def test_an_operator_without_a_kernel_on_the_device_is_refused() -> None:
    operator = torch.ops.aten.mkldnn_max_pool3d.default
    with pytest.raises(UnavailableError) as caught:
        placed_function(
            operator, "aten.mkldnn_max_pool3d.default", operator, torch.device("cuda:0"), "method `forward`"
        )
    assert str(caught.value) == (
        "the program calls an operator that torch does not have on cuda:0\n"
        "  where: method `forward`\n"
        "  found: aten.mkldnn_max_pool3d.default\n"
        '  to do: load the model with `device="cpu"`, or export the model without the operator'
    )


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 GiB", "free memory of the GPU"),
        ("CUDA error: out of memory", "free memory of the GPU"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "free memory of the GPU"),
        ("CUDA error: device-side assert triggered", "start a new process"),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "start a new process"),
    ],
)
def test_a_fault_of_a_gpu_is_an_error_of_the_call(text: str, hint: str) -> None:
    with pytest.raises(CallError) as caught:
        device_failed("cuda:0", RuntimeError(f"{text}\nframe #0: c10::Error"))
    assert str(caught.value).startswith(f"a call failed on the GPU\n  where: cuda:0\n  found: RuntimeError: {text}\n")
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("error", [IndexError("index out of range in self"), LowerError("x"), RuntimeError("shapes")])
def test_other_errors_of_a_call_on_a_gpu_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        device_failed("cuda:0", error)
    assert caught.value is error


def test_a_call_in_a_forked_process_is_refused(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_arrays, "fork_test", lambda: lambda: True)
    model = relu("cuda:0")
    with pytest.raises(CallError) as caught:
        model.methods["forward"](torch.ones(4))
    assert str(caught.value) == (
        "a model on a GPU cannot be called in a forked process\n"
        "  found: the parent process had used the GPU before the fork, which CUDA does not survive\n"
        "  to do: load the model in the child process, started with the method `spawn` of `multiprocessing`"
    )


def test_weights_that_do_not_fit_on_a_gpu_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: TorchArrays, array: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(TorchArrays, "placed", full)
    value = plan_value(forward=method([VECTOR], [op("aten.mul.Tensor", v(0), c("w"), out=1)], v(1)), **WEIGHTS)
    with pytest.raises(ProgramError) as caught:
        program(TorchArrays("meta"), value, torch.ones(4))
    assert str(caught.value) == (
        "the weights cannot be placed on the GPU\n"
        "  where: meta\n"
        "  found: OutOfMemoryError: CUDA out of memory.\n"
        '  to do: free memory of the GPU, load on another GPU, or load with `device="cpu"`'
    )


def test_a_clock_of_a_gpu_waits_for_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch_arrays, "synchronize", waited.append)
    TorchArrays().clock()()
    assert waited == []
    TorchArrays("cuda:1").clock()()
    assert waited == ["cuda:1"]
