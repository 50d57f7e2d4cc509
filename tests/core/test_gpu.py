"""Programs on a GPU: `pytest -m gpu` on a machine with a GPU and torch for CUDA. Skipped elsewhere."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.loading import load_folder
from support.lowered import file_entry, floats, lowered_model, safetensors_bytes, write_lowered
from support.plans import Doubling, c, call, constant, delegate_entry, method, op, plan_value, python, tensor_input, v

import hatch_lower
from hatch_lower.errors import CallError, InputError, ProgramError
from hatch_lower.runtime.check import check_packaged_model
from hatch_lower.runtime.files import open_folder
from hatch_lower.runtime.timing import Timing

GPU = "cuda:0"
COUNT = 4
SQUARE = tensor_input(COUNT, COUNT)
BLOB = "digits/delegates/blob.bin"
TENSORS = {"w": floats(*range(1, COUNT * COUNT + 1)), "count": floats(0)}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


class OnGpu(Doubling):
    """Doubles its inputs; takes tensors on a GPU only."""

    devices = ("cuda",)


def plan_with(body: Any, result: Any, **fields: Any) -> Any:
    return plan_value(
        {
            "forward": method([SQUARE], body, result),
            "step": method([], [op("aten.add.Tensor", c("count"), 1, out=1)], v(1), mutations=[("count", v(1))]),
            "sizes": method(
                [],
                [
                    op("aten.full.default", (COUNT,), 2.0, out=1, device={"device": "cpu"}),
                    op("aten.ones.default", (COUNT,), out=2),
                    op("aten.add.Tensor", v(1), v(2), out=3),
                ],
                v(3),
            ),
        },
        storages=[("w", "float32", COUNT * COUNT), ("count", "float32", 1)],
        constants={"w": constant(0, COUNT, COUNT), "count": constant(1, 1, mutable=True)},
        **fields,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    product = op("aten.mm.default", v(0), c("w"), out=1)
    portable = plan_with([product, op("aten.relu.default", v(1), out=2)], v(2))
    body = [product, call(0, [v(1)], [SQUARE], 2), python("getitem", v(2), 0, out=3)]
    delegated = plan_with(body, v(3), delegates=[delegate_entry("gpu", "w")])
    recipes = {"gpu": {"plan": delegated, "blobs": {BLOB: b"code"}, "device": "cuda"}, "portable": {"plan": portable}}
    folder = tmp_path / "digits" / "_lowered"
    return write_lowered(folder, {"digits": lowered_model(folder, "digits", recipes, tensors=TENSORS)})


def load_here(folder: Path, recipe: str = "portable", device: str | None = "cuda") -> hatch_lower.LoadedModel:
    return load_folder(folder, "digits", recipe, delegates={"gpu": OnGpu}, device=device)


def weights() -> torch.Tensor:
    return torch.arange(1.0, COUNT * COUNT + 1, device=GPU).reshape(COUNT, COUNT)


def test_a_portable_recipe_on_a_gpu_equals_eager(folder: Path) -> None:
    model = load_here(folder)
    given = torch.randn(COUNT, COUNT, device=GPU)
    found = model(given)
    assert (model.device, str(found.device)) == (GPU, GPU)
    torch.testing.assert_close(found, torch.relu(given @ weights()))


def test_a_recipe_for_cuda_runs_on_the_current_gpu(folder: Path) -> None:
    model = load_here(folder, "gpu", None)
    given = torch.randn(COUNT, COUNT, device=GPU)
    assert model.device == f"cuda:{torch.cuda.current_device()}"
    torch.testing.assert_close(model(given), 2 * (given @ weights()))


def test_new_tensors_of_a_program_are_on_the_gpu(folder: Path) -> None:
    found = load_here(folder).sizes()
    assert (str(found.device), found.tolist()) == (GPU, [3.0] * COUNT)


def test_state_is_on_the_gpu_and_kept_cloned_and_reset(folder: Path) -> None:
    model = load_here(folder)
    assert [model.step().item(), model.step().item()] == [1, 2]
    clone = model.clone()
    assert [clone.step().item(), model.step().item()] == [3, 3]
    with pytest.raises(ProgramError, match="cannot be sent"):
        pickle.dumps(model)
    model.reset()
    assert (model.step().item(), str(model.step().device)) == (1, GPU)


def test_methods_and_clones_share_the_weights_on_the_gpu(folder: Path) -> None:
    load_here(folder)  # initializes CUDA
    before = torch.cuda.memory_allocated(GPU)
    model = load_here(folder)
    once = torch.cuda.memory_allocated(GPU) - before
    clones = [model.clone() for _ in range(8)]
    state = 512  # bytes that torch's allocator gives to a state of four bytes
    assert torch.cuda.memory_allocated(GPU) - before == once + len(clones) * state


def test_inputs_on_the_wrong_device_are_refused(folder: Path) -> None:
    here, there = load_here(folder, device="cpu"), load_here(folder)
    with pytest.raises(InputError) as caught:
        there(torch.ones(COUNT, COUNT))
    assert caught.value.hint == 'move the tensor to the model\'s device: `x0.to("cuda:0")`'
    with pytest.raises(InputError) as caught:
        here(torch.ones(COUNT, COUNT, device=GPU))
    assert caught.value.hint == 'pass `x0.cpu()`, or load the model with `device="cuda"`'


def test_a_strange_layout_or_a_gradient_is_no_obstacle(folder: Path) -> None:
    model = load_here(folder)
    given = torch.randn(COUNT, COUNT, device=GPU)
    expected = torch.relu(given.T @ weights())
    torch.testing.assert_close(model(given.T), expected)
    torch.testing.assert_close(model(given.T.clone().requires_grad_()), expected)
    with torch.autocast("cuda", torch.float16):
        assert model(given).dtype is torch.float32


def test_a_model_goes_on_after_it_has_run_out_of_memory(tmp_path: Path) -> None:
    size = 1 << 40  # elements: 4 TiB
    body = [op("aten.full.default", (size,), 1.0, out=1, device={"device": "cpu"})]
    plan = plan_value({"forward": method([], body, v(1)), "small": method([SQUARE], [], v(0))})
    folder = tmp_path / "digits" / "_lowered"
    write_lowered(folder, {"digits": lowered_model(folder, "digits", {"portable": {"plan": plan}})})
    model = load_here(folder)
    with pytest.raises(CallError) as caught:
        model()
    assert caught.value.what == "a call failed on the GPU"
    assert caught.value.hint.startswith("free memory of the GPU")
    assert model.small(torch.ones(COUNT, COUNT, device=GPU)).sum().item() == COUNT * COUNT


def test_threads_call_a_model_on_streams_of_their_own(folder: Path) -> None:
    body = [op("aten.mm.default", v(0), c("w"), out=1)]
    plan = plan_value(
        forward=method([SQUARE], body, v(1)),
        storages=[("w", "float32", COUNT * COUNT)],
        constants={"w": constant(0, COUNT, COUNT)},
    )
    model_of = {"digits": lowered_model(folder, "digits", {"portable": {"plan": plan}}, tensors=TENSORS)}
    model = load_here(write_lowered(folder, model_of))
    wrong: list[int] = []

    def call_often(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            given = torch.full((COUNT, COUNT), float(number), device=GPU)
            expected = given @ weights()
            if not all(torch.equal(model(given), expected) for _ in range(50)):
                wrong.append(number)

    threads = [threading.Thread(target=call_often, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_index_that_no_gpu_has_is_refused(folder: Path) -> None:
    with pytest.raises(ProgramError, match="there is no GPU with the index 99"):
        load_here(folder, device="cuda:99")


def test_a_model_on_a_gpu_is_sent_to_another_process_by_path_and_device(folder: Path) -> None:
    model = load_here(folder)
    again = pickle.loads(pickle.dumps(model))
    assert (again.recipe, again.device) == ("portable", GPU)


def call_in_child(model: Any, answers: Any) -> None:
    try:
        model.sizes()
    except CallError as error:
        answers.put(error.what)


def test_a_forked_process_gets_an_error(folder: Path) -> None:
    model = load_here(folder)
    model.sizes()
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=call_in_child, args=(model, answers))
    child.start()
    assert answers.get(timeout=60) == "a model on a GPU cannot be called in a forked process"
    child.join()


def test_the_clock_of_a_timed_program_waits_for_the_gpu(folder: Path) -> None:
    from hatch_lower.runtime.load import load_in_folder
    from hatch_lower.runtime.selection import DelegateKinds

    timing = Timing()
    model = load_in_folder(open_folder(folder), None, "portable", DelegateKinds(timing=timing), False, device="cuda")
    given = torch.randn(COUNT, COUNT, device=GPU)
    model(given)
    assert len(list(timing.clocks["forward"].take(0, 1))) > 2


def test_check_runs_a_model_on_the_gpu(tmp_path: Path) -> None:
    plan = plan_value(forward=method([tensor_input(COUNT)], [op("aten.relu.default", v(0), out=1)], v(1)))
    folder = tmp_path / "digits" / "_lowered"
    model = lowered_model(folder, "digits", {"portable": {"plan": plan}})
    values = floats(*range(COUNT))
    tensors = safetensors_bytes({"forward/input/0": values, "forward/output/0": values})
    model["check"] = file_entry(folder, "digits/check.safetensors", tensors)
    rows = list(check_packaged_model(open_folder(write_lowered(folder, {"digits": model})), "digits", device="cuda"))
    assert [(row.status, row.device, row.largest_error) for row in rows] == [("ok", GPU, 0)]
