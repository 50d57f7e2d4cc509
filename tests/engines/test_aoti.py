"""The aoti backend: what it takes, what it makes of it, and what it says when it cannot."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from elftools.elf.constants import P_FLAGS
from elftools.elf.elffile import ELFFile
from torch import Tensor, nn
from torch._inductor import cpu_vec_isa
from torch.export import Dim, ExportedProgram

from hatch_lower.backends.aoti.compile import AotiBackend
from hatch_lower.backends.aoti.configuration import ISAS, inductor_isolated
from hatch_lower.backends.aoti.library import choose_compiler
from hatch_lower.backends.aoti.record import refuse_extern
from hatch_lower.backends.aoti.run import AotiDelegate
from hatch_lower.backends.aoti.versions import read_shim, read_symbols
from hatch_lower.errors import BackendError, ProgramError
from hatch_lower.exir.backend.backend_api import lower_methods
from hatch_lower.exir.backend.backend_details import PreprocessResult, Target
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import PartitionResult
from hatch_lower.exir.graph.state import constant_of, constant_specs
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.lowering.partition import plan_partitions
from hatch_lower.runtime.delegates import DelegateBlob

pytestmark = [
    pytest.mark.torch,
    # torch 2.13 warns about its own copies in `run_decompositions`.
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

SPECS = [CompileSpec("isa", b"x86-64-v3"), CompileSpec("prepack-weights", b"")]


class Net(nn.Module):
    """A small network; the names of its parameters and its contents must not reach the library."""

    def __init__(self, seed: int = 0, prefix: str = "") -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.add_module(prefix + "inner", nn.Linear(8, 16))
        self.register_buffer(prefix + "scale", torch.tensor(2.0 + seed))
        self.prefix = prefix

    def forward(self, x: Tensor) -> Tensor:
        inner, scale = getattr(self, self.prefix + "inner"), getattr(self, self.prefix + "scale")
        return torch.softmax(inner(x) * scale, -1)


class Outputs(nn.Module):
    """Sizes, the input itself, attention over a dynamic length, and reductions of which every thread gets a part."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Any, ...]:
        heads = x.view(x.shape[0], -1, 2, 4).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        reduced = z.sum(), z.max(), (z * z).mean(0), z.double().std()
        return mixed.transpose(1, 2).reshape(x.shape), x.shape[1] * 2, x, y + y.shape[0], *reduced


def export(module: nn.Module, *args: Any, **kwargs: Any) -> ExportedProgram:
    program = torch.export.export(module.eval(), args, **kwargs)
    return to_edge(program, keep=AotiBackend.partitioner({}).ops_to_not_decompose(program)[0])


def export_net(seed: int = 0, prefix: str = "") -> ExportedProgram:
    return export(Net(seed, prefix), torch.ones(3, 8), dynamic_shapes={"x": {0: Dim("rows", max=100)}})


@dataclass(frozen=True)
class Built:
    results: Mapping[str, PreprocessResult]
    folder: Path

    def blob(self, name: str) -> DelegateBlob:
        path = self.folder / f"{name}.so"
        if not path.exists():
            path.write_bytes(self.results[name].processed_bytes)
        return DelegateBlob(path, self.results[name].info)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    length = Dim("length", min=2, max=64)
    outputs = export(
        Outputs(),
        torch.ones(2, 5, 8),
        torch.ones(7, 3),
        torch.ones(512, 1024),
        dynamic_shapes={"x": {1: length}, "y": {0: Dim("rows", max=16)}, "z": None},
    )
    programs = {"net": export_net(), "outputs": outputs}  # each is compiled for a dozen seconds
    environment, threads = dict(os.environ), torch.get_num_threads()
    results = AotiBackend.preprocess_many(list(programs.values()), [SPECS] * len(programs))
    assert dict(os.environ) == environment
    assert torch.get_num_threads() == threads
    return Built(dict(zip(programs, results, strict=True)), tmp_path_factory.mktemp("built"))


# What is made of a partition.


def test_a_result_says_what_the_wheel_must_know(built: Built) -> None:
    result = built.results["net"]
    assert result.suffix == "so"
    assert result.requirements == ("torch>=2.11,<2.16",)
    assert result.target == Target("Linux", "x86_64", "x86-64-v3")
    calling = {"constants": 3, "bound": [0, 1, 2], "inputs": 1, "passed": [0], "outputs": [0]}
    assert result.info == {**calling, "openmp": ["libgomp.so.1"]}
    assert result.processed_bytes.startswith(b"\x7fELF")
    assert len(result.processed_bytes) < 250_000


@pytest.mark.parametrize("name", ["net", "outputs"])
def test_a_library_fits_every_torch_that_is_known(built: Built, name: str) -> None:
    symbols, shim = read_symbols(built.results[name].processed_bytes), read_shim()
    assert {looked_up for names in shim.looked_up.values() for looked_up in names} <= symbols.exported
    # kernels are told by their names where two builds are compared
    assert {exported for exported in symbols.exported if not exported.startswith(("AOTInductor", "cpp_"))} == set()
    # the C++ library's come from the C++ library, with versions, though libtorch has some of them too
    assert symbols.imported <= shim.functions.keys()
    assert built.results[name].requirements == ("torch>=2.11,<2.16",)


def test_the_debug_map_names_kernels(built: Built) -> None:
    handles = built.results["net"].debug_handle_map
    assert handles is not None
    call, kernel = handles
    assert call == "aoti_torch_cpu_addmm_out:1"
    assert str(kernel).startswith("cpp_fused__softmax")
    # linear; then mul and softmax, which a pattern of inductor's rewrites together
    assert handles == {call: (1,), kernel: (2, 3)}


def test_a_library_holds_no_path_of_the_build(built: Built) -> None:
    library = built.results["net"].processed_bytes
    for path in (sys.prefix, sys.base_prefix, str(Path(torch.__file__).parent), os.getcwd(), "hatch-lower-aoti"):
        assert path.encode() not in library


def test_a_library_needs_torch_and_the_c_runtime_and_no_executable_stack(built: Built) -> None:
    with built.blob("net").path.open("rb") as file:
        library = ELFFile(file)
        needed = {tag.needed for tag in library.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
        stack = next(segment for segment in library.iter_segments() if segment["p_type"] == "PT_GNU_STACK")
        assert not stack["p_flags"] & P_FLAGS.PF_X
        assert library.get_section_by_name(".note.gnu.build-id") is None
        assert not list(library.get_section_by_name(".dynamic").iter_tags("DT_RUNPATH"))
    allowed = {"libtorch", "libtorch_cpu", "libc", "libgcc_s", "libgomp", "libm", "libstdc++", "ld-linux-x86-64"}
    assert "libtorch_cpu.so" in needed
    assert {name.partition(".so")[0] for name in needed} <= set(allowed)


def test_every_dynamic_size_gives_eagers_numbers(built: Built) -> None:
    net = Net(5).eval()
    program = export_net(5)
    constants = [constant_of(program, spec) for spec in constant_specs(program)]
    delegate = AotiDelegate.load(built.blob("net"), constants)
    for rows in (0, 1, 2, 3, 61, 100):
        x = torch.randn(rows, 8)
        (result,) = delegate.run([x])
        torch.testing.assert_close(result, net(x).detach())
        assert not result.requires_grad


def test_inputs_that_require_gradients_work(built: Built) -> None:
    program = export_net()
    constants = [constant_of(program, spec) for spec in constant_specs(program)]
    x = torch.randn(4, 8, requires_grad=True)
    (result,) = AotiDelegate.load(built.blob("net"), constants).run([x])
    torch.testing.assert_close(result, Net().eval()(x).detach())


def test_sizes_and_inputs_come_back_as_eager_gives_them(built: Built) -> None:
    delegate = AotiDelegate.load(built.blob("outputs"), [])
    for length, rows in ((5, 7), (2, 1), (64, 16)):
        x, y, z = torch.randn(2, length, 8), torch.randn(rows, 3), torch.randn(512, 1024)
        results, expected = delegate.run([x, y, z]), Outputs()(x, y, z)
        torch.testing.assert_close(results[0], expected[0])
        assert results[1] == 2 * length
        assert type(results[1]) is int
        assert results[2] is x
        torch.testing.assert_close(results[3], expected[3])


FRESH = """
import json, resource, sys, torch
from pathlib import Path
from hatch_lower.backends.aoti.configuration import ISAS, inductor_isolated
from hatch_lower.backends.aoti.run import AotiDelegate
from hatch_lower.backends.aoti.library import choose_compiler
from hatch_lower.runtime.delegates import DelegateBlob
delegate = AotiDelegate.load(DelegateBlob(Path(sys.argv[1]), json.loads(sys.argv[2])), [])
x, y, z = torch.randn(2, 5, 8), torch.randn(7, 3), torch.randn(512, 1024)
errors = {}
for threads in (1, 2, 8, 64):
    torch.set_num_threads(threads)
    expected = z.sum(), z.max(), (z * z).mean(0), z.double().std()
    for _ in range(3):
        results = delegate.run([x, y, z])[4:]
    errors[threads] = max((a - b).abs().max().item() for a, b in zip(results, expected))
pages = []
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(1 << 20) for _ in range(4)]
    del blocks
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(json.dumps({"errors": errors, "modules": sorted(sys.modules), "pages": pages}))
"""


@pytest.fixture(scope="module")
def fresh(built: Built) -> dict[str, Any]:
    """Return what a fresh interpreter says that finds no compiler and loads a library."""
    blob = built.blob("outputs")
    root = Path(__file__).parents[2]
    environment = {"PATH": "", "PYTHONPATH": root, "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-c", FRESH, str(blob.path), json.dumps(dict(blob.info))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_any_number_of_threads_gives_eagers_numbers(fresh: dict[str, Any]) -> None:
    assert set(fresh["errors"]) == {"1", "2", "8", "64"}
    assert max(fresh["errors"].values()) < 0.01


def test_a_call_takes_the_memory_that_the_one_before_has_freed(fresh: dict[str, Any]) -> None:
    # blocks of 16 MiB, which are 4,096 pages; by glibc's defaults they go back to the system
    assert fresh["pages"][0] > 1000
    assert fresh["pages"][-1] < 100


def test_loading_needs_neither_inductor_nor_a_compiler(fresh: dict[str, Any]) -> None:
    heavy = [name for name in fresh["modules"] if name.startswith(("torch._inductor", "torch._dynamo", "sympy"))]
    assert heavy == []
    assert not any(name.startswith("hatch_lower.backends.aoti.comp") for name in fresh["modules"])


ELSEWHERE = """
import hashlib, runpy, sys, warnings
warnings.simplefilter("ignore")
test = runpy.run_path(sys.argv[1])
result = test["AotiBackend"].preprocess(test["export_net"](seed=3, prefix="another_"), test["SPECS"])
print(hashlib.sha256(result.processed_bytes).hexdigest())
"""


@pytest.mark.slow
def test_bytes_do_not_depend_on_weights_names_or_hash_seed(built: Built, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}",
        "PYTHONHASHSEED": "77",
        "TMPDIR": str(tmp_path),
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "ATEN_CPU_CAPABILITY": "default",
    }
    command = [sys.executable, "-c", ELSEWHERE, __file__]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == hashlib.sha256(built.results["net"].processed_bytes).hexdigest()
    assert not list(tmp_path.glob("hatch-lower-aoti-*"))


@pytest.mark.parametrize("isa", ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_the_instruction_set_is_given_and_not_probed(isa: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = choose_compiler(ISAS[isa])

    def refuse(*args: Any, **kwargs: Any) -> None:
        pytest.fail(f"a process was started: {args}")

    with inductor_isolated(ISAS[isa], compiler.program, tmp_path):
        compiler.compile_command("a.cpp", "a.o", optimize=True)  # asks the compiler once which kind it is
        monkeypatch.setattr(subprocess, "Popen", refuse)
        vectors = cpu_vec_isa.pick_vec_isa()
        assert bool(vectors) == (isa in ("x86-64-v3", "x86-64-v4"))
        flags = [flag for flag in compiler.compile_command("a.cpp", "a.o", optimize=True) if flag.startswith("-m")]
    assert flags[0] == f"-march={isa}"
    assert not any("bf16" in flag or "native" in flag for flag in flags)


# What is taken.


def partition(program: ExportedProgram, **options: Any) -> tuple[PartitionResult, dict[str, list[str]]]:
    """Return the partitioner's result, and each tag's operations."""
    result = AotiBackend.partitioner(options)(program)
    groups: dict[str, list[str]] = {tag: [] for tag in result.partition_tags}
    for node in program.graph.nodes:
        if node.op == "call_function" and "delegation_tag" in node.meta:
            groups[node.meta["delegation_tag"]].append(node.name)
    return result, groups


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Parameter(torch.ones(4))
        self.first = nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("loose", torch.zeros(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.relu(x * self.first) + self.shared
        self.seen.add_(1)
        values, _ = torch.linalg.eigh(a @ a.t())
        b = torch.sigmoid(values[: x.shape[1]] + self.shared)
        self.loose.copy_(b)
        return a.sum(0) + self.loose, b


def test_an_operation_without_native_code_separates_two_partitions() -> None:
    program = export(Mixed(), torch.ones(4, 4))
    result, groups = partition(program)
    assert list(groups) == ["aoti_0", "aoti_1"]
    assert "aten_relu_default" in groups["aoti_0"]
    assert "aten_sigmoid_default" in groups["aoti_1"]
    refused = {name: reason for name, reason in result.reasons.items() if "native code" in reason}
    assert set(refused.values()) == {"inductor has no native code for `aten._linalg_eigh.default`"}
    assert all(spec.backend_id == "aoti" and spec.compile_specs == SPECS for spec in result.partition_tags.values())


class Experts(nn.Module):
    def __init__(self, implementation: str) -> None:
        super().__init__()
        from transformers import MixtralConfig, MixtralModel

        heads = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
        config = MixtralConfig(vocab_size=9, num_hidden_layers=1, num_local_experts=2, use_cache=False, **heads)
        self.inner = MixtralModel._from_config(config, experts_implementation=implementation)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.inner(input_ids=tokens).last_hidden_state


@pytest.mark.parametrize(
    ("implementation", "left"), [("batched_mm", set()), ("grouped_mm", {"transformers.grouped_mm_fallback.default"})]
)
def test_experts_need_no_operator_of_transformers_if_they_are_multiplied_in_batches(
    implementation: str, left: set[str]
) -> None:
    pytest.importorskip("transformers")
    program = export(Experts(implementation), torch.tensor([[1, 2, 3]]))
    result, _ = partition(program)
    assert (len(result.partition_tags) == 1) == (not left)
    assert {str(node.target) for node in program.graph.nodes if str(node.target).startswith("transformers")} == left


def test_constants_go_to_their_users() -> None:
    program = export(Mixed(), torch.ones(4, 4))
    result, _ = partition(program)
    plan = plan_partitions(program, result.partition_tags, lambda backend_id, state: False)
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    owned = {each.tag: {targets[node.name] for node in each.owned} for each in plan.all_partitions()}
    # what both use, both own; `loose` is changed by one and read outside, so it stays in the program
    assert owned == {"aoti_0": {"first", "shared"}, "aoti_1": {"shared", "seen"}}


class Refused(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.rand_like(x) + 1,
            torch.view_as_complex(x.view(2, 2, 2)).abs() * 2,
            torch.nonzero(x) + 1,
            nn.functional.dropout(x, 0.5, training=False) * 3,
            torch.sort(x, stable=True)[0] + 1,
            torch.median(x, 1)[0] + 1,
            torch.any(x.to(torch.uint8), 1) + 1,
            torch.any(x, 1) + 1,
        )


def test_reasons_say_why_an_operation_is_not_taken() -> None:
    program = export(Refused(), torch.ones(2, 4))
    result, groups = partition(program, exclude=["aten.sort.stable"])
    texts = " | ".join(f"{name}: {reason}" for name, reason in sorted(result.reasons.items()))
    assert "draws random numbers, and compiled code would draw others than eager" in texts
    assert "has the type complex64" in texts
    assert "the result of `aten.nonzero.default` has a size that depends on its input's contents" in texts
    assert "`aten.sort.stable` is excluded by the recipe" in texts
    assert "inductor has no native code for `aten.median.dim`" in texts
    assert texts.count("inductor's `aten.any.dim` gives Booleans for uint8") == 1
    taken = {name for names in groups.values() for name in names}
    assert taken
    assert not taken & set(result.reasons)
    calls = {node.name for node in program.graph.nodes if node.op == "call_function"}
    assert taken | set(result.reasons) == calls


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x * 2,))
        return y * 3


def test_control_flow_is_left_out_and_its_surroundings_taken() -> None:
    program = export(Branches(), torch.ones(3))
    result, groups = partition(program)
    assert len(groups) == 2
    assert "`cond` holds graphs of its own" in result.reasons.values()


class Views(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.t().unsqueeze(0)


def test_views_alone_are_left_out() -> None:
    result, groups = partition(export(Views(), torch.ones(3, 2)))
    assert groups == {}
    assert set(result.reasons.values()) == {"it computes nothing, and its neighbours are not compiled"}


class Sizes(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.relu(x).view(x.shape[0] * 2, -1)
        # of what is compiled: what follows cannot be in one partition with it
        values, _ = torch.linalg.eigh(torch.relu(y) + a.sum())
        return a, torch.relu(values[:, None].expand(-1, x.shape[0])) + values.shape[0]


def test_a_partition_takes_no_size_that_its_tensors_do_not_show() -> None:
    program = export(Sizes(), torch.ones(3, 4), torch.ones(5, 5), dynamic_shapes={"x": {0: Dim("rows")}, "y": None})
    result, groups = partition(program)
    assert "it takes a symbolic size that no tensor input of its partition has" in result.reasons.values()
    assert "aten_relu_default" in groups["aoti_0"]


class Parts(nn.Module):
    """Two partitions that share a constant, with state, and with a size that comes from outside the second."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Parameter(torch.randn(4))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        a = torch.relu(x + self.shared) + self.calls
        values, _ = torch.linalg.eigh(a.t() @ a)
        return (torch.sigmoid(a * values) + self.shared).view(1, x.shape[0], 4).expand(2, -1, -1).sum(0)


class Runner(torch.fx.Interpreter):
    """Runs a lowered program with its delegates, one set of constants for all."""

    def __init__(self, program: ExportedProgram, constants: Mapping[str, Tensor], folder: Path) -> None:
        super().__init__(program.graph_module)
        self.delegates: dict[int, AotiDelegate] = {}
        for index, module in enumerate(program.graph_module.children()):
            assert isinstance(module, LoweredBackendModule)
            path = folder / f"{index}.so"
            path.write_bytes(module.processed_bytes)
            tensors = [constants[name] for name in module.constants]
            self.delegates[id(module)] = AotiDelegate.load(DelegateBlob(path, module.result.info), tensors)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is torch.ops.higher_order.executorch_call_delegate:
            return self.delegates[id(args[0])].run(list(args[1:]))
        return super().call_function(target, args, kwargs)


@pytest.mark.slow
def test_partitions_share_constants_and_read_sizes_off_their_tensors(tmp_path: Path) -> None:
    module = Parts().eval()
    program = export(module, torch.ones(3, 4), dynamic_shapes={"x": {0: Dim("rows", min=1, max=99)}})
    lowered = lower_methods({"forward": program}, {"forward": AotiBackend.partitioner({})})["forward"]
    assert lowered.partitions == 2
    constants = {name: tensor.detach().clone() for name, tensor in program.state_dict.items()}
    runner = Runner(lowered.program, constants, tmp_path)
    for rows in (3, 1, 2, 99):
        x = torch.randn(rows, 4)
        (result,) = runner.run(x)
        torch.testing.assert_close(result, module(x).detach(), rtol=1e-4, atol=1e-4)
    assert constants["calls"].item() == 4


# What cannot be.


def test_all_problems_with_options_are_reported_at_once() -> None:
    with pytest.raises(BackendError) as caught:
        AotiBackend.partitioner({"isa": "x86-64-v9", "excludes": [], "exclude": "aten.sort.stable"})
    assert caught.value.what == "the options of the backend `aoti` are wrong"
    assert caught.value.found == (
        "`excludes` is no option: did you mean `exclude`? known: `exclude`, `isa`, `prepack-weights`, `timers`\n"
        "`exclude` must be a list of strings such as `aten.sort.stable`, but is 'aten.sort.stable'\n"
        "`isa` is 'x86-64-v9': did you mean `x86-64-v4`? known: `armv8-a`, `x86-64`, `x86-64-v2`, `x86-64-v3`, "
        "`x86-64-v4`, `x86-64-v4-vnni`"
    )


def test_an_instruction_set_of_another_machine_is_refused() -> None:
    with pytest.raises(BackendError) as caught:
        AotiBackend.partitioner({"isa": "armv8-a"})
    assert caught.value.found == (
        "`isa` is 'armv8-a', which this x86_64 machine cannot compile for: choose from "
        "['x86-64', 'x86-64-v2', 'x86-64-v3', 'x86-64-v4', 'x86-64-v4-vnni']"
    )


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BackendError) as caught:
        AotiBackend.fingerprint(SPECS)
    assert str(caught.value) == (
        "no C++ compiler was found, and the backend `aoti` needs one to build\n"
        "  found: neither `g++` nor `clang++` is on PATH\n"
        "  to do: install a compiler (`apt-get install g++`, `dnf install gcc-c++`), or set CXX to its path"
    )
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BackendError, match="no C\\+\\+ compiler") as caught:
        AotiBackend.preprocess(export_net(), SPECS)
    assert caught.value.found == "CXX is 'no-such-compiler', which is not a program"


def test_a_failing_compiler_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\ncase $1 in --version) echo fake 1.0;; *) echo out of ideas; exit 3;; esac\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = dict(os.environ)
    with pytest.raises(BackendError) as caught:
        AotiBackend.preprocess(export_net(), SPECS)
    assert caught.value.what == "the C++ compiler failed on the code that inductor generated"
    assert caught.value.found == "out of ideas"
    assert list(tmp_path.iterdir()) == [compiler]
    assert dict(os.environ) == before


def test_an_operation_without_a_native_call_is_named() -> None:
    with pytest.raises(BackendError) as caught:
        refuse_extern('{"nodes": [{"node": {"target": "aten::median.dim", "inputs": []}}]}')
    assert str(caught.value) == (
        "inductor has no native call for an operation of a partition\n"
        "  found: aten::median.dim\n"
        "  to do: leave the operation out with the backend's option `exclude`"
    )


def test_the_fingerprint_holds_the_tools_versions() -> None:
    found = AotiBackend.fingerprint(SPECS)
    assert sorted(found) == ["aoti", "compiler", "linker", "settings", "versions"]
    assert found["settings"] != AotiBackend.fingerprint([CompileSpec("isa", b"x86-64")])["settings"]
    assert not any("/" in value for value in found.values())


def test_a_file_that_is_no_library_is_refused(built: Built, tmp_path: Path) -> None:
    path = tmp_path / "text.so"
    path.write_text("no library")
    with pytest.raises(ProgramError) as caught:
        AotiDelegate.load(DelegateBlob(path, built.results["net"].info), [torch.ones(1)] * 3)
    assert caught.value.what == "a compiled partition cannot be loaded"
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    "damage",
    [{"outputs": ["text"]}, {"passed": [4]}, {"bound": [9]}, {"inputs": "x"}, {"openmp": ["/tmp/libgomp.so"]}],
)
def test_damaged_facts_are_refused(built: Built, damage: dict[str, Any]) -> None:
    blob = DelegateBlob(built.blob("net").path, {**built.results["net"].info, **damage})
    with pytest.raises(ProgramError, match="the plan does not describe a partition of the backend `aoti`"):
        AotiDelegate.load(blob, [torch.ones(1)] * 3)
