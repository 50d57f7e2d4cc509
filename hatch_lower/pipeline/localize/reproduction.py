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

README = """\
# {title}

{finding}

- `{program}`: these operations as a program of `torch.export`, with weights
- `{inputs}`: inputs of the program, from the model
- `{test}`: lowers the program for `{backend}`, and compares with torch

```
pip install .
python -m pytest
```

The program takes tensors of fixed sizes{sizes}:

```python
{code}
```

Made by hatch-lower {own} with torch {torch}, {machine}. The test fails as long as the difference exists. The files hold
weights and inputs of the model: make sure that these may be published.
"""

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "reproduction"
version = "0"
dependencies = {requirements}

[tool.hatch.build.targets.wheel]
only-include = ["{test}"]
"""

SOURCE = '''\
"""Lowers `program.pt2` for a backend, and compares the results with torch."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import hatch_lower
from hatch_lower.exir import EdgeCompileConfig, to_edge
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.pipeline.save import save_program

HERE = Path(__file__).parent
OPTIONS = json.loads((HERE / "options.json").read_text())


class Everything(Partitioner):
    """Gives the whole program to the backend."""

    def partition(self, exported_program):
        users = exported_program.graph_signature.user_inputs
        for node in exported_program.graph.nodes:
            if node.op != "output" and node.name not in users:
                node.meta["delegation_tag"] = "all"
        specs = [CompileSpec(key, bytes.fromhex(value)) for key, value in OPTIONS["compile_specs"]]
        return PartitionResult(exported_program, {"all": DelegationSpec(OPTIONS["backend"], specs)})


def read_inputs():
    tensors = load_file(HERE / "inputs.safetensors")
    ordered = [tensors[f"x{index}"] for index in range(len(tensors))]
    pairs = zip(ordered, OPTIONS["inputs"], strict=True)
    return [tensor.item() if layout is None else laid_out(tensor, layout) for tensor, layout in pairs]


def laid_out(tensor, strides):
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


@pytest.mark.filterwarnings("ignore")
def test_the_backend_computes_what_torch_does(tmp_path):
    program, inputs = torch.export.load(HERE / "program.pt2"), read_inputs()
    expected = program.module()(*inputs)
    kept = [node.target for node in program.graph.nodes if node.op == "call_function"]
    config = EdgeCompileConfig(preserve_ops=[op for op in kept if isinstance(op, torch._ops.OpOverload)])
    lowered = to_edge(program, compile_config=config).to_backend(Everything())
    save_program(lowered.to_executorch(), tmp_path / "saved")
    given = hatch_lower.load(tmp_path / "saved")(*inputs)
    for one, other in zip(given, expected, strict=True):
        scale = float(other.abs().max()) if other.is_floating_point() and other.numel() else 0.0
        atol = OPTIONS["atol"] + OPTIONS["rtol"] * scale
        torch.testing.assert_close(one, other, rtol=OPTIONS["rtol"], atol=atol, equal_nan=True)
'''


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
        (folder / TEST).write_text(SOURCE, encoding="utf-8")
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
    return README.format(
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
    return PROJECT.format(requirements=json.dumps(listed), test=TEST)
