"""A backend that writes down what it lowers, in a distribution of its own, and projects of chains of operators for it.

Builds find it through `PYTHONPATH`. A line is one write to a file that is only appended to, so several processes may
lower at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.scenarios import Project

MODULE = '''
import os
import time

from hatch_lower.exir.backend.backend_details import BackendDetails
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.backends.reference.compile import ReferenceBackend


class CountedBackend(BackendDetails):
    """The reference backend, slowed down; it takes each operator as a partition."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        names = [str(node.target) for node in edge_program.graph.nodes if node.op == "call_function"]
        log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(log, (" ".join(names) + "\\n").encode())
        os.close(log)
        end = time.monotonic() + {seconds!r}
        while time.monotonic() < end and not os.path.exists({go_on!r}):
            time.sleep(0.05)
        return ReferenceBackend.preprocess(edge_program, compile_specs)

    @classmethod
    def partitioner(cls, options):
        return EachOperator()


class EachOperator(Partitioner):
    def partition(self, exported_program):
        spec = DelegationSpec("counted", [])
        tags = {{}}
        for number, node in enumerate(exported_program.graph.nodes):
            if node.op == "call_function":
                node.meta["delegation_tag"] = f"operator_{{number}}"
                tags[f"operator_{{number}}"] = spec
        return PartitionResult(exported_program, tags)
'''

METADATA = "Metadata-Version: 2.1\nName: counted\nVersion: 1.0\n"
ENTRY_POINTS = """[hatch_lower.backends]
counted = counted_backend:CountedBackend
[hatch_lower.delegates]
counted = hatch_lower.backends.reference.run:ReferenceDelegate
"""
RECORD = "counted_backend.py,,\ncounted-1.0.dist-info/METADATA,,\ncounted-1.0.dist-info/entry_points.txt,,\n"

PYPROJECT = """[build-system]
requires = ["hatchling", "hatch-lower", "torch==2.13.*"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "{version}"
requires-python = ">=3.11"
dependencies = ["hatch-lower>=0.1", "torch==2.13.*"]

[project.entry-points."hatch_lower.models"]
{models}

[tool.hatch.build.targets.wheel.hooks.lower]
backends = ["counted"]
jobs = {jobs}
"""
RECIPE = """
[tool.hatch.build.targets.wheel.hooks.lower.recipes.{name}]
backends = ["counted"]
"""
MODEL = """
class {title}(torch.nn.Module):
    def forward(self, x):
        return {expression}


def {name}():
    return Model({title}().eval(), methods={{"forward": Method(args=(torch.full((3,), 0.5),))}})
"""


@dataclass(frozen=True, slots=True)
class Counted:
    """The backend `counted`: the folder that builds need in `PYTHONPATH`, and the file that it writes."""

    folder: Path
    log: Path

    def lowered(self) -> list[str]:
        """Return the operators of each partition that it lowered, sorted."""
        return sorted(self.log.read_text().splitlines()) if self.log.exists() else []


def install_counted(folder: Path, seconds: float) -> Counted:
    """Install the backend; it takes some seconds for a partition, or until there is a file `go on` in the folder."""
    log = folder / "lowered"
    site = folder / "site"
    information = site / "counted-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "counted_backend.py").write_text(MODULE.format(log=str(log), seconds=seconds, go_on=str(folder / "go on")))
    (information / "METADATA").write_text(METADATA)
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    (information / "RECORD").write_text(RECORD)
    return Counted(site, log)


def chain_project(
    folder: Path,
    cache: Path,
    models: Mapping[str, Sequence[str]],
    *,
    name: str = "chains",
    version: str = "1.0",
    recipes: Sequence[str] = (),
    jobs: int = 1,
) -> Project:
    """Write a project.

    Args:
        folder: gets it, and its wheels.
        cache: of its builds.
        models: name to the functions of torch that it applies, the first one first.
        name: of the project and its package.
        version: of the project.
        recipes: names of the recipes beside the one of the table itself.
        jobs: how many models are exported at once.
    """
    root = folder / name
    (root / name).mkdir(parents=True)
    entries = "\n".join(f'{each} = "{name}.model:{each}"' for each in models)
    text = PYPROJECT.format(name=name, version=version, models=entries, jobs=jobs)
    (root / "pyproject.toml").write_text(text + "".join(RECIPE.format(name=each) for each in recipes))
    (root / name / "__init__.py").write_text("")
    code = ["import torch\nfrom hatch_lower import Method, Model\n"]
    for model, functions in models.items():
        expression = "x"
        for function in functions:
            expression = f"torch.{function}({expression})"
        code.append(MODEL.format(title=model.title(), name=model, expression=expression))
    (root / name / "model.py").write_text("\n".join(code))
    return Project(root, folder / "dist", cache)
