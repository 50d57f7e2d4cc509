from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import export
from torch_tried import PACKAGE, ROOM, TABLE, is_there, looked_for, names_of, used, used_with_older

from hatch_lower.runtime.torch_private import inductor, older, operators, programs, symbols, tensors, unimported
from hatch_lower.runtime.torch_private.older import accepted, inductor_mended, is_older, without_newer

pytestmark = pytest.mark.torch

aten = torch.ops.aten
# underscored attributes of other libraries' objects, and of Python's
OTHERS = {
    "ExecuTorch": {"_emitter_output", "_get_operator_names", "_load_for_executorch", "_named_data", "_named_data_store"}
    | {"_tensor_data", "_threadpool_get_thread_count", "_unsafe_reset_threadpool"},
    "ONNX Runtime": {"_ortvalue"},
    "OpenVINO": {"_nodes"},
    "pytest": {"_arg2fixturedefs"},
    "Python": {"_Environ", "_config", "_exit", "_fields", "_getframe", "_handle", "_replace"},
    "torchao": {"_annotate_nodes_not_quantize"},
    "transformers": {"_apply_gate", "_attn_implementation", "_can_set_experts_implementation", "_shift_right"},
}


def modules_outside() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent != ROOM:
            yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())


def given_names(tree: ast.AST) -> set[str]:
    """Return what a module itself defines: functions, names that it assigns, and attributes of its classes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") else set()
    return found


OUTSIDE = dict(modules_outside())
OWN = {f".{name}" for tree in OUTSIDE.values() for name in given_names(tree)}
FOREIGN = {f".{name}" for names in OTHERS.values() for name in names}


def test_only_one_room_names_what_torch_does_not_promise() -> None:
    named = [(module, line, name) for module, tree in OUTSIDE.items() for name, line in names_of(tree).items()]
    assert len(OUTSIDE) > 200
    assert [f"{module}:{line}: {name}" for module, line, name in named if name not in OWN | FOREIGN] == []


def test_an_underscored_attribute_that_torch_and_a_class_here_have_is_of_that_class() -> None:
    # the operator behind one of a dialect, and the constants of a program's nested graph
    both = {name for name in used() if name.startswith(".")} & OWN
    rooms = {
        (name, module.split("/")[0]) for name in both for module, tree in OUTSIDE.items() if name in names_of(tree)
    }
    assert rooms == {("._op", "exir"), ("._constants", "runtime")}


@pytest.mark.parametrize(
    "code", ["from torch._ops import OpOverload", "import torch._prims", "torch._C.parse_schema", "x = 'torch._C'"]
)
def test_a_private_name_is_found_however_it_is_come_by(code: str) -> None:
    (name,) = names_of(ast.parse(code))
    assert name.startswith("torch._")


@pytest.mark.parametrize(
    "code", ["torch.ops.aten._to_copy.default", "self._x", "torch.__version__", "import torch.export", "'torch._'"]
)
def test_what_is_public_or_a_modules_own_is_none(code: str) -> None:
    assert names_of(ast.parse(code)) == {}


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own, on the way to inductor
def test_torch_has_what_is_used_of_it() -> None:
    wanted = {*used(), *(used_with_older() if is_older() else ())} - looked_for()
    assert [name for name in sorted(wanted) if not is_there(name)] == []


def test_a_name_that_torch_does_not_have_is_missed() -> None:
    assert not is_there("torch._C._no_such_function")
    assert not is_there("torch._no_such_module.function")


def test_the_table_says_of_each_name_with_what_it_was_tried() -> None:
    table = json.loads(TABLE.read_text())
    assert list(table) == used()
    here = ".".join(torch.__version__.split(".")[:2])
    wanted = {name: here if is_there(name) else f"{here}{unimported.ABSENT}" for name in table}
    assert [name for name, versions in table.items() if wanted[name] not in versions] == []
    absent = {name for name, versions in table.items() if any(unimported.ABSENT in version for version in versions)}
    assert absent <= looked_for()


@pytest.mark.parametrize("version", ["2.12.1", "2.13.0+cpu", "2.15.9", "2.15.0a0+git0123abc"])
def test_no_torch_up_to_the_newest_that_was_tried_is_warned_about(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unimported, "tried_versions", lambda: ["2.13", "2.15"])
    assert unimported.why_untried(version) == ""


@pytest.mark.parametrize("version", ["2.16.0", "2.16.0.dev20261101+cu130", "2.100.0", "3.0.0"])
def test_a_newer_torch_is_named_with_those_that_were_tried(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unimported, "tried_versions", lambda: ["2.13", "2.15"])
    tried = "newer than all versions that hatch-lower was tried with (2.13, 2.15)"
    assert unimported.why_untried(version) == f"torch {version} is {tried}"


def test_a_version_counts_as_tried_with_all_of_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unimported, "TABLE", tmp_path / "tried.json")
    unimported.TABLE.write_text('{"torch._a": ["2.9", "2.10", "2.11"], "torch._b": ["2.10", "2.9 (absent)"]}')
    assert unimported.tried_versions() == ["2.9", "2.10"]


@pytest.mark.skipif(not is_older(), reason="needs torch 2.11 or 2.12, whose names `older.py` mends")
def test_an_array_has_one_name_in_a_wrapper() -> None:
    """Each time, inductor gives another object for the method that writes a line."""
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
    from torch._inductor.utils import IndentedBuffer

    wrapper: Any = CppWrapperCpu.__new__(CppWrapperCpu)
    wrapper.codegen_int_array_var_cache = {}
    names = iter("abcdef")
    wrapper._codegen_int_array_var_impl = lambda *_: next(names)
    first, second = IndentedBuffer(), IndentedBuffer()
    writers = [first.writeline, first.writeline, second.writeline]
    assert len(set(map(id, writers))) == 3
    with inductor_mended():
        assert [wrapper.codegen_int_array_var("{2L, 3L}", writer) for writer in writers] == ["a", "a", "b"]


def test_settings_that_only_later_versions_have_are_left_out_of_older_ones() -> None:
    settings = {"cpp.threads": 4, "cpp.march": "x86-64"}
    assert without_newer(settings) == ({"cpp.threads": 4} if is_older() else settings)


def test_an_option_is_given_where_a_class_takes_it() -> None:
    def build(*, compiler: str) -> str:
        return compiler

    assert accepted(build, compiler="g++") == {"compiler": "g++"}
    assert accepted(lambda: None, compiler="g++") == {}


def test_an_error_of_a_library_has_the_library_s_text(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        constants = 3

        def run(self, inputs: list[torch.Tensor]) -> None:
            raise RuntimeError("run_func_ failed")

    runner = older.TellingRunner(Failing(), Path("partition.so"))
    assert runner.constants == 3
    for text, expected in (("index out of range", "index out of range"), ("", "run_func_ failed")):
        monkeypatch.setattr(older, "last_error", lambda path, text=text: text)
        with pytest.raises(RuntimeError, match=f"^{expected}$"):
            runner.run([])


def test_a_library_without_texts_of_errors_has_none() -> None:
    assert older.last_error(Path(torch.__file__).parent / "lib" / "libc10.so") == ""


def test_operators_say_their_names() -> None:
    op = aten.add.Tensor
    assert (operators.base_name(op), operators.overload_name(op)) == ("add", "Tensor")
    assert operators.overload_name(aten.relu.default) == "default"
    assert operators.packet_name(aten.add) == "aten.add"
    assert operators.schema_of(op).name == "aten::add"
    assert programs.qualify_name(torch.nn.functional.relu) == "torch.nn.functional.relu"
    assert operators.parse_schema("one(Tensor x) -> Tensor").arguments[0].name == "x"


def test_operators_say_what_the_dispatcher_has() -> None:
    assert operators.is_registered(aten.add.Tensor)
    assert operators.has_composite_kernel(aten.dropout.default)
    assert not operators.has_composite_kernel(aten.add.Tensor)
    assert operators.compiled_function(aten.neg.default)(torch.ones(1)) == -1


def test_tensors_say_what_they_share_and_how_often_they_changed() -> None:
    tensor = torch.zeros(4)
    assert tensors.storage_number(tensor) == tensors.storage_number(tensor[2:])
    assert tensors.storage_number(torch.empty(0)) != tensors.storage_number(torch.empty(0).clone())
    before = tensors.read_change_counter(tensor)
    tensor.add_(1)
    assert tensors.read_change_counter(tensor) == before + 1
    module = torch.nn.BatchNorm1d(2)
    module.kept = tensor
    parameters, buffers, others = tensors.own_tensors(module)
    assert ("weight" in parameters, "running_mean" in buffers, others["kept"]) == (True, True, tensor)


def test_a_program_takes_a_signature_and_arguments_in_its_order() -> None:
    class Two(torch.nn.Module):
        def forward(self, *, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a - b

    program = export(Two(), (), {"a": torch.ones(1), "b": torch.zeros(1)})
    ordered = programs.order_kwargs({"b": 1, "a": 2}, program.call_spec.in_spec)
    assert list(ordered) == ["a", "b"]
    signature = type(program.graph_signature)(program.graph_signature.input_specs, program.graph_signature.output_specs)
    programs.change_signature(program, signature)
    assert program.graph_signature is signature
    fakes = [node.meta["val"] for node in program.graph.find_nodes(op="placeholder")]
    assert isinstance(programs.mode_of_fakes(fakes), programs.FakeTensorMode)
    assert programs.mode_of_fakes([torch.ones(1)]) is None


def test_the_users_own_faults_are_told_from_others() -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 the class is torch's
        export(torch.nn.ReLU(), (torch.ones(2),), dynamic_shapes=({}, {}))
    assert programs.is_users_fault(caught.value)
    assert not programs.is_users_fault(ValueError())


def test_expressions_are_computed_with_other_values() -> None:
    import sympy

    size = sympy.Symbol("s0", integer=True, positive=True)
    assert symbols.compute(symbols.FloorDiv(size, 2) + 1, {size: 7}) == 4


def test_inductor_knows_what_it_generates() -> None:
    assert inductor.is_generated(aten.relu.default) is True
    assert inductor.is_taken_apart_or_called(aten.mm.out) or inductor.is_taken_apart_or_called(aten.addmm.default)
    assert "AOTInductorModelContainerRun" in inductor.interface_path().read_text()


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own, on the way to inductor
def test_vector_registers_are_pinned_for_as_long_as_it_is_asked() -> None:
    from torch._inductor import config, cpu_vec_isa

    threads, probe = config.cpp.threads, cpu_vec_isa.valid_vec_isa_list
    with inductor.pinned({"cpp.threads": 3}, ""):
        assert config.cpp.threads == 3
        found: Any = cpu_vec_isa.valid_vec_isa_list()
        assert found == []
    assert (config.cpp.threads, cpu_vec_isa.valid_vec_isa_list) == (threads, probe)
