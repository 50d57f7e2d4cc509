"""Write a small project that reproduces a wrong result: the operations as an exported program, inputs, and a test."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.export import ExportedProgram

from hatch_lower import __version__
from hatch_lower.errors import PackageError
from hatch_lower.exir.dialects._ops import torch_overload
from hatch_lower.exir.graph.surgery import all_nodes, copy_program
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.pipeline.localize.finding import Finding, finding_lines
from hatch_lower.pipeline.localize.pieces import Piece
from hatch_lower.pipeline.rounding import rounding_of, united
from hatch_lower.runtime.numbers import Tolerance
from hatch_lower.runtime.torch_private.programs import Verifier

PROGRAM, INPUTS, OPTIONS, TEST = "program.pt2", "inputs.safetensors", "options.json", "test_reproduction.py"

Reproduce = Callable[[Piece, Sequence[object], LoweredBackendModule, Finding], str]

TEMPLATE = Path(__file__).with_name("template")


def write_reproduction(folder: Path, tolerance: Tolerance) -> Reproduce:
    """Return a function that writes a project into `folder`; raise `PackageError` if the folder is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PackageError(
            "a reproduction is written into an empty folder only",
            where=str(folder),
            found="a file" if not folder.is_dir() else f"`{min(entry.name for entry in folder.iterdir())}`",
            hint="name a folder that does not exist",
        )

    def write(piece: Piece, inputs: Sequence[object], module: LoweredBackendModule, finding: Finding) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        program = plain_program(piece.program, inputs)
        allowed = tolerance.after(united(rounding_of(program).outputs))
        torch.export.save(program, folder / PROGRAM)
        tensors = [value if isinstance(value, torch.Tensor) else torch.tensor(value) for value in inputs]
        own = {f"x{index}": tensor.detach().clone().contiguous() for index, tensor in enumerate(tensors)}
        save_file(own, folder / INPUTS)
        options = {
            "backend": module.backend_id,
            "compile_specs": [[spec.key, spec.value.hex()] for spec in module.compile_specs],
            "inputs": [list(value.stride()) if isinstance(value, torch.Tensor) else None for value in inputs],
            "rtol": allowed.rtol,
            "atol": allowed.atol,
        }
        (folder / OPTIONS).write_text(json.dumps(options, indent=2) + "\n", encoding="utf-8")
        (folder / TEST).write_text(template_text(TEST), encoding="utf-8")
        (folder / "README.md").write_text(readme(finding, module, program, piece.program), encoding="utf-8")
        (folder / "pyproject.toml").write_text(project_text(module.result.requirements), encoding="utf-8")
        return str(folder)

    return write


def plain_program(program: ExportedProgram, inputs: Sequence[object]) -> ExportedProgram:
    """Return a program of torch's own operators for inputs of the given sizes, without names of local files."""
    copied = copy_program(program, torch_overload, Verifier)
    exported = torch.export.export(copied.module(), tuple(inputs), strict=False)
    for node in all_nodes(exported.graph_module):
        node.meta.pop("stack_trace", None)
        node.meta.pop("nn_module_stack", None)
    return exported


def readme(finding: Finding, module: LoweredBackendModule, program: ExportedProgram, original: ExportedProgram) -> str:
    count = len(finding.operations)
    names = finding.operations[0].op if count == 1 else f"{count} operations"
    return template_text("README.md").format(
        title=f"{names} in {module.backend_id} differ{'s' * (count == 1)} from torch",
        finding="\n".join(f"    {line}" for line in finding_lines(finding)),
        program=PROGRAM,
        inputs=INPUTS,
        test=TEST,
        backend=module.backend_id,
        sizes="; in the model some are symbolic" if original.range_constraints else "",
        code=str(program.graph_module.code).strip(),
        own=__version__,
        torch=torch.__version__,
        machine=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    )


def project_text(requirements: Sequence[str]) -> str:
    listed = ["pytest", "safetensors", f"hatch-lower=={__version__}", *dict.fromkeys(requirements)]
    return template_text("pyproject.toml").format(requirements=json.dumps(listed), test=TEST)


def template_text(name: str) -> str:
    return (TEMPLATE / f"{name}.in").read_text("utf-8")
