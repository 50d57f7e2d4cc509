"""ONNX Runtime's providers with options, and calls whose tensors stay on a device."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.exports import Workshop, settings_of
from support.modules import Call
from torch import Tensor, nn
from torch.export import Dim

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from hatch_lower.backends.onnxruntime.compile import OnnxruntimeBackend
from hatch_lower.backends.onnxruntime.device import DeviceCalls
from hatch_lower.backends.onnxruntime.library import CPU, import_onnxruntime
from hatch_lower.backends.onnxruntime.providers import CUDA, TENSORRT, Provider, session_providers
from hatch_lower.backends.onnxruntime.run import OnnxruntimeDelegate, engine_folder
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import BackendError, ProgramError, UnavailableError
from hatch_lower.exir import to_edge_transform_and_lower
from hatch_lower.exir.lowered_backend_module import get_lowered_backend_modules
from hatch_lower.runtime.delegates import DelegateBlob

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def lowered_modules(module: nn.Module, *args: Any, dynamic: Any = None, **options: Any) -> list[Any]:
    with torch.no_grad():
        program = torch.export.export(copy.deepcopy(module).eval(), args, dynamic_shapes=dynamic, strict=False)
        lowered = to_edge_transform_and_lower(program, partitioner=[OnnxruntimeBackend.partitioner(options)])
        return get_lowered_backend_modules(lowered.to_executorch().programs["forward"].graph_module)


def made_blob(folder: Path, module: nn.Module, *args: Any, dynamic: Any = None, **options: Any) -> DelegateBlob:
    """Return the only partition of a module without constants."""
    (delegate,) = lowered_modules(module, *args, dynamic=dynamic, **options)
    result = OnnxruntimeBackend.preprocess(delegate.original_module, delegate.compile_specs)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "partition.onnx"
    path.write_bytes(result.processed_bytes)
    return DelegateBlob(path, result.info)


def calls_on_cpu(blob: DelegateBlob) -> DeviceCalls:
    delegate = OnnxruntimeDelegate.load(blob, [])
    return DeviceCalls(delegate._session, "cpu", str(blob.path))


# Options of providers.


@pytest.mark.parametrize(
    ("providers", "problem"),
    [
        ([{"name": CUDA, "use_tf32": False}], f"`use_tf32` is no option of `{CUDA}`: did you mean `use-tf32`?"),
        ([{"name": CUDA, "x": 1}], "its options are `device-id`, `use-tf32`"),
        ([{"name": CUDA, "device-id": True}], f"`device-id` of `{CUDA}` must be a number from 0, but is True"),
        ([{"name": TENSORRT, "workspace": 0}], f"`workspace` of `{TENSORRT}` must be a number of bytes from 1"),
        ([{"name": TENSORRT, "engine-cache": "/tmp"}], f"`engine-cache` of `{TENSORRT}` must be true or false"),
        ([{"name": CPU, "threads": 1}], f"`threads` is no option of `{CPU}`"),
        ([{"name": CPU, "threads": 1}], "its options are none"),
        ([{"device-id": 1}], "`providers` holds {'device-id': 1}, but ONNX Runtime's names are like"),
        ([CPU, {"name": CPU}], f"`providers` names `{CPU}` twice"),
        ([CUDA, "DmlExecutionProvider"], f"no build of ONNX Runtime has `{CUDA}` and `DmlExecutionProvider`"),
        ([{"name": CUDA, "device-id": 1}, {"name": TENSORRT, "device-id": 0}], "`device-id` is 0 and 1"),
        ([], "`providers` must be a list of names such as"),
        ("CPU", "`providers` must be a list of names such as"),
    ],
)
def test_options_of_a_provider_are_checked_with_the_known_options(providers: object, problem: str) -> None:
    with pytest.raises(BackendError) as caught:
        OnnxruntimeBackend.partitioner({"providers": providers})
    assert problem in caught.value.found


def test_float32_stays_float32_on_cuda_unless_the_recipe_says_otherwise() -> None:
    assert session_providers([Provider(CUDA), Provider(CPU)], "cpu", no_cache) == [
        (CUDA, {"device_id": "0", "use_tf32": "0"}),
        CPU,
    ]
    fast = Provider(CUDA, {"use-tf32": True})
    assert session_providers([fast], "cuda:2", no_cache) == [(CUDA, {"device_id": "2", "use_tf32": "1"})]


def test_the_gpu_that_load_names_is_the_gpu_of_all_providers() -> None:
    given = [Provider(TENSORRT, {"workspace": 1 << 30}), Provider(CUDA, {"device-id": 1})]
    assert session_providers(given, "cuda:1", no_cache) == [
        (TENSORRT, {"device_id": "1", "trt_max_workspace_size": str(1 << 30)}),
        (CUDA, {"device_id": "1", "use_tf32": "0"}),
    ]


def test_engines_of_tensorrt_are_kept_below_the_users_caches_apart_for_other_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cached = Provider(TENSORRT, {"engine-cache": True})
    ((_, options),) = session_providers([cached], "cpu", lambda: engine_folder("1.31", b"model", [np.zeros(3)]))
    folder = Path(options["trt_engine_cache_path"])
    assert options["trt_engine_cache_enable"] == "1"
    assert folder.is_dir()
    assert folder.is_relative_to(tmp_path / "cache" / "hatch-lower" / "tensorrt")
    others = [
        engine_folder("1.32", b"model", [np.zeros(3)]),
        engine_folder("1.31", b"models", [np.zeros(3)]),
        engine_folder("1.31", b"model", [np.ones(3)]),
        engine_folder("1.31", b"model", [np.zeros((3, 1))]),
        engine_folder("1.31", b"model", [np.zeros(3, np.int64), np.zeros((2, 0))]),
    ]
    assert len({str(folder), *others}) == 6
    assert engine_folder("1.31", b"model", [np.zeros(3)]) == str(folder)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ProgramError, match="the folder for TensorRT's engines cannot be made"):
        engine_folder("1.31", b"model", [])


def no_cache() -> str:
    raise AssertionError


def test_options_of_providers_reach_the_plan_and_no_model(tmp_path: Path) -> None:
    table = [{"name": TENSORRT, "engine-cache": True}, {"name": CUDA, "use-tf32": True}, CPU]
    alone = made_blob(tmp_path / "cpu", Call(torch.relu), torch.randn(3))
    optional = made_blob(tmp_path / "gpu", Call(torch.relu), torch.randn(3), providers=table)
    assert alone.info["providers"] == [CPU]
    assert optional.info["providers"] == table
    assert alone.path.read_bytes() == optional.path.read_bytes()


LINEAR = """\
import torch
from hatch_lower import Method, Model

def export():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
    return Model(net, {"forward": Method((torch.randn(2, 64),))})
"""


def test_recipes_of_cpu_and_cuda_share_model_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE", "off")
    shop = Workshop(tmp_path)
    table = [{"name": TENSORRT, "engine-cache": True}, {"name": CUDA, "use-tf32": True}, CPU]
    fast = Recipe("tensorrt", (BackendChoice("onnxruntime", {"providers": table}),), verify=False)
    cuda = Recipe("cuda", (BackendChoice("onnxruntime", {"providers": [CUDA, CPU]}),), verify=False)
    plain = Recipe("plain", (BackendChoice("onnxruntime"),))
    report, _ = shop.build(shop.capture(LINEAR), settings_of(fast, cuda, plain))
    models = [file for file in report.files if file.path.endswith(".onnx")]
    weights = [file for file in report.files if "constants" in file.path]
    assert len(weights) == 1
    assert len(models) == 1
    assert sum(file.size for file in weights) < 1.1 * 4 * (64 * 64 + 64 + 64 * 8 + 8)


# Providers of a session.


class Sessions:
    """Sessions on the CPU that say that they have the providers that were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        onnxruntime = import_onnxruntime()
        made = onnxruntime.InferenceSession

        def make(model: bytes, options: object = None, *, providers: Sequence[Any], **more: object) -> Any:
            self.asked.append(providers)
            session = made(model, options, providers=[CPU], **more)
            names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
            session.get_providers = lambda: names
            return session

        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
        monkeypatch.setattr(onnxruntime, "InferenceSession", make)


def test_arrays_on_the_host_are_computed_on_the_gpu_of_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = Sessions(monkeypatch)
    blob = made_blob(tmp_path, Call(torch.relu), torch.randn(3), providers=[CUDA, CPU])
    delegate = OnnxruntimeDelegate.load(replace(blob, computes_on="cuda:1"), [])
    assert sessions.asked[-1] == [(CUDA, {"device_id": "1", "use_tf32": "0"}), CPU]
    (result,) = delegate.run([np.array([-1, 0, 1], np.float32)])
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [0, 0, 1]


def test_a_recipe_for_one_gpu_runs_on_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(monkeypatch)
    table = [{"name": CUDA, "device-id": 1}, CPU]
    blob = made_blob(tmp_path, Call(torch.relu), torch.randn(3), providers=table)
    sessions.asked.clear()
    with pytest.raises(UnavailableError) as caught:
        OnnxruntimeDelegate.load(replace(blob, computes_on="cuda:0"), [])
    assert caught.value.what == "the recipe computes on the GPU 1 only"
    assert caught.value.found == f"`device-id` of `{CUDA}` is 1, and the model is loaded on cuda:0"
    assert caught.value.hint == 'load the model with `device="cuda:1"`'
    assert not sessions.asked
    OnnxruntimeDelegate.load(replace(blob, computes_on="cuda:1"), [])
    assert sessions.asked[-1:] == [[(CUDA, {"device_id": "1", "use_tf32": "0"}), CPU]]


def test_tensors_on_a_gpu_are_bound_on_the_gpu_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(monkeypatch)
    blob = made_blob(tmp_path, Call(torch.relu), torch.randn(3), providers=[CUDA, CPU])
    delegate = OnnxruntimeDelegate.load(replace(blob, device="cuda:1", computes_on="cuda:1"), [])
    assert sessions.asked[-1][0] == (CUDA, {"device_id": "1", "use_tf32": "0"})
    assert delegate._calls is not None
    assert delegate._calls._device == torch.device("cuda:1")


def test_a_recipe_for_the_cpu_takes_no_tensors_on_a_gpu(tmp_path: Path) -> None:
    blob = replace(made_blob(tmp_path, Call(torch.relu), torch.randn(3)), device="cuda:0", computes_on="cuda:0")
    with pytest.raises(UnavailableError) as caught:
        OnnxruntimeDelegate.load(blob, [])
    assert caught.value.what == "the recipe's execution providers do not compute on cuda:0"
    assert caught.value.found == CPU
    assert 'load the model with `device="cpu"`' in caught.value.hint


# Calls with tensors on a device, here the CPU.


def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x @ y, x > 0, x.sum(0), torch.cat([x, x])


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> DeviceCalls:
    length = Dim("length", min=0, max=64)
    dynamic = {"args": ({0: length}, None)}
    return calls_on_cpu(
        made_blob(tmp_path_factory.mktemp("calls"), Call(mixed), torch.randn(5, 3), torch.randn(3, 4), dynamic=dynamic)
    )


@pytest.mark.parametrize("rows", [5, 1, 64, 0])
def test_results_are_eagers_for_each_size(calls: DeviceCalls, rows: int) -> None:
    x, y = torch.randn(rows, 3), torch.randn(3, 4)
    torch.testing.assert_close(calls.run([x, y]), list(mixed(x, y)))


def test_inputs_of_other_layouts_are_read_as_tensors(calls: DeviceCalls) -> None:
    wide, y = torch.randn(3, 7), torch.randn(4, 3).T
    x = wide.T[1:6]
    flat = torch.randn(16)[1:16].view(5, 3)
    assert flat.data_ptr() % 16
    for given in (x, flat, x.clone().requires_grad_()):
        torch.testing.assert_close(calls.run([given, y]), [each.detach() for each in mixed(given, y)])


def test_results_of_known_sizes_are_torchs_memory_and_no_result_is_of_a_later_call(
    calls: DeviceCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[int] = []
    session = calls._session
    binding_of = session.io_binding

    def io_binding() -> Any:
        binding = binding_of()
        bind_output = binding.bind_output

        def noted(name: str, *about: Any) -> None:
            bound.append(about[-1] if len(about) > 2 else 0)
            bind_output(name, *about)

        binding.bind_output = noted
        return binding

    monkeypatch.setattr(session, "io_binding", io_binding)
    x, y = torch.randn(5, 3), torch.randn(3, 4)
    first = calls.run([x, y])
    assert [result.data_ptr() for result in first[:3]] == bound[:3]
    kept = [result.clone() for result in first]
    calls.run([torch.randn(5, 3), y])
    torch.testing.assert_close(first, kept, rtol=0, atol=0)


def test_a_result_of_a_size_that_no_input_has_is_copied(tmp_path: Path) -> None:
    length = Dim("length", max=64)
    blob = made_blob(tmp_path, Call(lambda x: torch.cat([x, x]) > 0), torch.randn(5), dynamic={"args": ({0: length},)})
    calls = calls_on_cpu(blob)
    assert calls._allocate(calls._outputs[0][3], {}, torch.bool) is None
    x = torch.randn(7)
    (result,) = calls.run([x])
    assert result.dtype == torch.bool
    assert torch.equal(result, torch.cat([x, x]) > 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool])
def test_each_dtype_is_bound_as_it_is(dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.tensor([[0, 1, 2], [3, 0, 5]]).to(dtype)
    calls = calls_on_cpu(made_blob(tmp_path, Call(lambda x: torch.cat([x, x], 1)), x))
    (result,) = calls.run([x])
    assert result.dtype == dtype
    assert torch.equal(result, torch.cat([x, x], 1))


def test_calls_of_several_threads_do_not_meet(calls: DeviceCalls) -> None:
    given = [(torch.randn(rows, 3), torch.randn(3, 4)) for rows in range(1, 33)]
    with ThreadPoolExecutor(8) as pool:
        for (x, y), results in zip(given, pool.map(calls.run, given), strict=True):
            torch.testing.assert_close(results, list(mixed(x, y)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_on_a_gpu_stay_there(tmp_path: Path) -> None:
    if CUDA not in import_onnxruntime().get_available_providers():
        pytest.skip("ONNX Runtime has no CUDA")
    length = Dim("length", max=64)
    dynamic = {"args": ({0: length}, None)}
    given = torch.randn(5, 3), torch.randn(3, 4)
    blob = made_blob(tmp_path, Call(mixed), *given, dynamic=dynamic, providers=[CUDA, CPU])
    delegate = OnnxruntimeDelegate.load(replace(blob, device="cuda:0", computes_on="cuda:0"), [])
    stream = torch.cuda.Stream()
    for rows in (5, 1, 64):
        x, y = torch.randn(rows, 3, device="cuda:0"), given[1].cuda()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)  # the inputs are not there yet when the call begins
            later = x * 2
            results = delegate.run([later, y])
        expected = mixed(x * 2, y)
        assert all(result.device == x.device for result in results)
        torch.testing.assert_close(list(results), list(expected), rtol=1e-4, atol=1e-5)
