"""What is wrong in a lowered method: which operation, which line, in which inputs, or why that cannot be said."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.seeded import Fault, Place, seeded

from hatch_lower import Method, Model
from hatch_lower.backends.reference.compile import ReferenceBackend
from hatch_lower.backends.reference.run import ReferenceDelegate
from hatch_lower.cache.store import open_store
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import PackageError, ProgramError, SampleError, VerificationError
from hatch_lower.events import NullReporter
from hatch_lower.exir.backend.backend_details import CompileSpec, ExportedProgram, PreprocessResult
from hatch_lower.exir.backend.canonical_partitioners.all_node_partitioner import AllNodePartitioner
from hatch_lower.exir.graph.surgery import count_operations
from hatch_lower.exir.lowering import lower
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.pipeline.localize.finding import Finding, Findings, Localization, finding_lines
from hatch_lower.pipeline.lower_model import find_wrong, lower_model, start_build
from hatch_lower.runtime import torch_arrays
from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.runtime.selection import DelegateKinds

pytestmark = pytest.mark.torch

HERE = Path(__file__).name


class Net(torch.nn.Module):
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        return torch.softmax(self.second(hidden), -1)

    def count(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(torch.sin(x).sum(0))
        return self.total * torch.cos(x)

    def noisy(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(4)

    def later(self, x: torch.Tensor) -> torch.Tensor:
        result = self.total * torch.cos(x)
        self.total.add_(torch.sin(x).sum(0))
        return result

    def branches(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.cond(x.sum() > 0, lambda x: torch.sin(x) + 1.0, lambda x: torch.cos(x) - 1.0, (x,))
        return result

    def gaps(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.log(x - 100.0))


FIRST, SECOND = Place.of("first", "addmm", "linear"), Place.of("second", "addmm", "linear")


@pytest.fixture(autouse=True)
def _declared_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = [
        EntryPoint("reference", "hatch_lower.backends.reference.compile:ReferenceBackend", "hatch_lower.backends")
    ]
    monkeypatch.setattr("hatch_lower.exir.backend.registry.entry_points", lambda group: declared)


Look = Callable[..., Findings]
Build = Callable[..., None]


@dataclass
class Project:
    """A model in this process, lowered for the reference backend."""

    root: Path
    count: int = 0

    def start(
        self, methods: dict[str, Method], backends: tuple[str, ...] = ("reference",), **given: Any
    ) -> tuple[Any, ...]:
        recipe = Recipe("default", tuple(map(BackendChoice, backends)), on_mismatch="fail")
        model = ModelSettings("net", "net:export", "net", ("default",))
        settings = Settings(self.root, "net", "1", (model,), (recipe,), check_bytes=0, **given)
        torch.manual_seed(0)
        source = capture_model("net", Model(Net().eval(), methods=methods), NullReporter())
        self.count += 1
        folder = self.root / f"build{self.count}"
        folder.mkdir()
        store = open_store({"HATCH_LOWER_CACHE": "off"}, lambda line: None)
        return settings, model, source, folder, NullReporter(), store


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(DelegateKinds, "load", lambda self, name: ReferenceDelegate)
    return Project(tmp_path)


@pytest.fixture
def look(project: Project) -> Look:
    def run(
        methods: dict[str, Method],
        fault: Fault | None = None,
        backends: tuple[str, ...] = ("reference",),
        seconds: float = 600.0,
        **wanted: Any,
    ) -> Findings:
        with seeded(fault or Fault(Place.of("nothing"))):
            return find_wrong(*start_build(*project.start(methods, backends)), Localization(seconds, **wanted))

    return run


@pytest.fixture
def build(project: Project) -> Build:
    def run(fault: Fault, **given: Any) -> None:
        with seeded(fault):
            lower_model(*start_build(*project.start(forward(), **given)))

    return run


def forward(**kwargs: Any) -> dict[str, Method]:
    return {"forward": Method(args=(torch.linspace(-1, 1, 12).reshape(3, 4),), **kwargs)}


def only(found: Findings) -> Finding:
    (finding,) = found.findings
    return finding


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"{HERE}:{next(number for number, line in enumerate(lines, 1) if text in line)}"


def test_the_first_wrong_operation_has_its_line(look: Look) -> None:
    finding = only(look(forward(), Fault(FIRST)))
    assert finding.verdict == "operation"
    (operation,) = finding.operations
    assert (operation.op, operation.module) == ("aten.linear.default", "first")
    assert operation.source.endswith(line_of("torch.tanh(self.first"))
    assert (finding.backend, finding.partition, finding.case) == ("reference", 1, "example inputs")
    assert finding.lowerings <= 3
    (line,) = finding_lines(finding)
    assert line.startswith("first wrong: linear at ")
    assert "inside partition 1 of reference: its inputs are eager's own, its output is off by " in line


def test_a_method_without_a_fault_has_none(look: Look) -> None:
    finding = only(look(forward()))
    assert (finding.verdict, finding.operations, finding.lowerings) == ("none", (), 0)


def test_no_file_of_a_loaded_partition_is_written_again(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []
    load = ReferenceDelegate.load

    def noting(blob: DelegateBlob, constants: Any) -> ReferenceDelegate:
        paths.append(blob.path)
        return load(blob, constants)

    monkeypatch.setattr(ReferenceDelegate, "load", noting)
    look(forward())
    assert len(paths) == len(set(paths)) > 1
    assert not any(path.exists() for path in paths)


def test_operations_that_are_wrong_together_are_no_line(look: Look) -> None:
    finding = only(look(forward(), Fault(SECOND, beside=FIRST)))
    assert finding.verdict == "together"
    assert {"first", "second"} <= {operation.module for operation in finding.operations}
    assert not any(line.startswith("first wrong") for line in finding_lines(finding))


def test_sizes_that_a_method_leaves_open_stay_open(look: Look) -> None:
    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=64)}}
    assert only(look(forward(dynamic_shapes=shapes))).verdict == "none"
    finding = only(look(forward(dynamic_shapes=shapes), Fault(SECOND, "squash")))
    assert (finding.verdict, finding.operations[0].module) == ("operation", "second")


def test_what_is_kept_from_call_to_call_is_compared_in_the_second(look: Look) -> None:
    methods = {"count": Method(args=(torch.linspace(0, 1, 8).reshape(2, 4),))}
    assert only(look(methods)).verdict == "none"
    finding = only(look(methods, Fault(Place.of("", "sin"))))
    assert finding.verdict == "operation"
    assert finding.operations[0].op == "aten.sin.default"


def test_what_a_delegate_keeps_wrongly_is_found_in_the_call_before(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    # a partition that owns its buffers
    owner = AllNodePartitioner("reference", [])
    monkeypatch.setattr(ReferenceBackend, "partitioner", lambda options: owner)
    methods = {"later": Method(args=(torch.linspace(0, 1, 8).reshape(2, 4),))}
    assert only(look(methods)).verdict == "none"
    finding = only(look(methods, Fault(Place.of("", "sin"))))
    assert finding.case == "example inputs, call 2"
    assert (finding.verdict, finding.operations[0].op) == ("operation", "aten.sin.default")


def test_state_that_a_delegate_loses_is_no_operation(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(Delegate):
        def __init__(self, again: Callable[[], Delegate]) -> None:
            self._again = again

        @classmethod
        def load(cls, blob: DelegateBlob, constants: Any) -> Delegate:
            return Forgetful(lambda: ReferenceDelegate.load(blob, constants))

        def run(self, inputs: list[torch.Tensor]) -> Any:
            return self._again().run(inputs)

    monkeypatch.setattr(ReferenceBackend, "partitioner", lambda options: AllNodePartitioner("reference", []))
    monkeypatch.setattr(DelegateKinds, "load", lambda self, name: Forgetful)
    finding = only(look({"later": Method(args=(torch.linspace(0, 1, 8).reshape(2, 4),))}))
    assert (finding.verdict, finding.operations) == ("state", ())
    assert next(finding_lines(finding)).startswith("wrong: the state that partition 1 of reference keeps between calls")


def test_a_graph_that_was_converted_wrongly_is_no_backends_fault(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower, "to_edge", lambda *args, **kwargs: Fault(SECOND).applied(to_edge(*args, **kwargs)))
    finding = only(look(forward()))
    assert (finding.verdict, finding.operations, finding.lowerings) == ("conversion", (), 0)


def test_what_a_program_runs_itself_is_compared_too(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    found = torch_arrays.function_of

    def doubled(name: str, operator: Any) -> Callable[..., Any]:
        function: Callable[..., Any] = found(name, operator)
        return (lambda *args: function(*args) * 2) if name == "aten.softmax.int" else function

    monkeypatch.setattr(torch_arrays, "function_of", doubled)
    finding = only(look(forward(), backends=()))
    assert (finding.verdict, finding.operations[0].op, finding.backend) == ("outside", "aten.softmax.int", "")
    assert next(finding_lines(finding)).startswith("first wrong: softmax at ")


def test_of_a_branch_with_partitions_no_line_inside_is_named(look: Look) -> None:
    methods = {"branches": Method(args=(torch.linspace(0, 1, 8),))}
    assert only(look(methods)).verdict == "none"
    finding = only(look(methods, Fault(Place.of("", "sin"))))
    assert (finding.verdict, finding.operations[0].source.endswith(line_of("= torch.cond(x"))) == ("outside", True)
    assert finding.notes == ("its branches or body hold partitions of reference",)


def test_without_time_no_line_is_named(look: Look) -> None:
    finding = only(look(forward(), Fault(FIRST), seconds=0.0))
    assert (finding.verdict, finding.lowerings) == ("among", 0)
    assert {operation.module for operation in finding.operations} == {"", "first", "second"}
    head, *_, note = finding_lines(finding)
    assert head.startswith(
        f"wrong: some of {len(finding.operations)} operations inside partition 1 of reference: off by "
    )
    assert note == "  stopped after 0 lowerings: a longer search may find fewer operations"


def test_a_backend_that_refuses_parts_is_said_to(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ReferenceBackend.preprocess

    def preprocess(program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        if len(program.graph_signature.user_outputs) > 1 or count_operations(program.graph_module) < 3:
            raise NotImplementedError("only whole models")
        return made(program, specs)

    monkeypatch.setattr(ReferenceBackend, "preprocess", preprocess)
    finding = only(look(forward(), Fault(FIRST)))
    assert finding.verdict in ("among", "together")
    assert "first" in {operation.module for operation in finding.operations}
    assert not any(line.startswith("first wrong") for line in finding_lines(finding))


def test_inputs_that_eager_refuses_are_nothing_to_compare_with(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_lower.pipeline.heal.runs", lambda case: False)
    with pytest.raises(VerificationError, match="the eager module refuses all inputs"):
        look(forward())


def test_a_method_that_draws_random_numbers_cannot_be_compared(look: Look) -> None:
    finding = only(look({"noisy": Method(args=(torch.zeros(4),))}, Fault(FIRST)))
    assert finding.verdict == "random"
    assert finding.notes == ("the method draws random numbers: aten.rand.default",)


def test_nan_on_both_sides_is_equal(look: Look) -> None:
    methods = {"gaps": Method(args=(torch.linspace(0, 1, 4),))}
    assert only(look(methods)).verdict == "none"


def test_inputs_of_a_sample_file_are_what_is_compared(look: Look, tmp_path: Path) -> None:
    save_file({"forward/3/x": torch.full((3, 4), 0.5)}, tmp_path / "given.safetensors")
    finding = only(look(forward(), Fault(FIRST), inputs=tmp_path / "given.safetensors"))
    assert (finding.verdict, finding.case) == ("operation", "given.safetensors, case 3")
    save_file({"forward/0/y": torch.zeros(3, 4)}, tmp_path / "other.safetensors")
    with pytest.raises(SampleError, match="a sample is for an unknown input"):
        look(forward(), inputs=tmp_path / "other.safetensors")


def test_names_that_are_not_there_are_refused(look: Look) -> None:
    with pytest.raises(
        ProgramError, match="the model has no method `forwards`\\n  where: model `net`\\n  to do: did you mean"
    ):
        look(forward(), method="forwards")
    with pytest.raises(ProgramError, match="the model has no recipe `defaults`"):
        look(forward(), recipe="defaults")


def test_a_reproduction_runs_and_shows_it(look: Look, tmp_path: Path) -> None:
    folder = tmp_path / "shown"
    finding = only(look(forward(), Fault(FIRST), reproduction=folder))
    assert finding.reproduction == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("README.md", "inputs.safetensors", "options.json", "program.pt2", "pyproject.toml", "test_reproduction.py"),
    ]
    assert "first wrong: linear at " in (folder / "README.md").read_text()
    assert str(Path(__file__).parent).encode() not in (folder / "program.pt2").read_bytes()
    (folder / "conftest.py").write_text(FAULTY)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "Tensor-likes are not close" in done.stdout
    with pytest.raises(PackageError, match="a reproduction is written into an empty folder only"):
        look(forward(), reproduction=folder)


FAULTY = """\
import pytest
from hatch_lower.exir.backend import backend_api
from hatch_lower.exir.dialects._ops import ops
from hatch_lower.exir.graph.surgery import copy_program

made = backend_api.make_request


def make_request(method, spec, backend, program):
    program = copy_program(program)
    for node in program.graph.find_nodes(op="call_function", target=ops.edge.aten.addmm.default):
        node.kwargs = {"beta": 2}
    program.graph_module.recompile()
    return made(method, spec, backend, program)


@pytest.fixture(params=["right", "faulty"], autouse=True)
def engine(request, monkeypatch):
    if request.param == "faulty":
        monkeypatch.setattr(backend_api, "make_request", make_request)
"""


def test_a_build_whose_comparison_fails_names_the_first_wrong_operation(build: Build) -> None:
    with pytest.raises(VerificationError) as caught:
        build(Fault(FIRST))
    assert type(caught.value) is VerificationError
    first, second = caught.value.found.splitlines()
    assert first.startswith("largest absolute error ")
    assert second.startswith("first wrong: linear at ")
    assert second.endswith("on example inputs")


def test_a_build_fails_by_its_comparison_whatever_happens_afterwards(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Finding:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("hatch_lower.pipeline.heal.localize_method", broken)
    with pytest.raises(
        VerificationError, match="search for the first wrong operation failed: RuntimeError: out of luck"
    ):
        build(Fault(FIRST))
