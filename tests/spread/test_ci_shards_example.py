"""The ready workflows for many machines, run job by job: each machine has a checkout and a cache of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.cache_server import CacheServer, cache_server
from support.ci import Runner, make_runner, read_workflow, steps_of
from support.scenarios import Project, only, sha256

from hatch_lower.cache.remote.signing import new_key_pair

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

GITHUB = read_workflow("shards.yml")
GITLAB = read_workflow("gitlab-shards.yml")
PAIR = new_key_pair()


class Service:
    """A CI service with a shared cache, which gives each job a new machine."""

    def __init__(self, project: Project, folder: Path, server: CacheServer) -> None:
        self._project = project
        self._folder = folder
        self._server = server

    def machine(self, name: str, **expressions: str) -> Runner:
        """Return a machine of a job; its expressions are those of GitHub."""
        root = self._folder / f"checkout-{name}"
        shutil.copytree(self._project.root, root)
        variables = {
            "HATCH_LOWER_REMOTE_CACHE": self._server.url,
            "HATCH_LOWER_PUBLIC_KEYS": PAIR.public,
            "HATCH_LOWER_CACHE_DIR": str(self._folder / f"cache-{name}"),
        }
        secrets = {"secrets.HATCH_LOWER_REMOTE_TOKEN": "", "secrets.HATCH_LOWER_SIGNING_KEY": PAIR.private}
        return make_runner(root, self._folder / f"machine-{name}", {**secrets, **expressions}, variables)


@pytest.fixture
def service(project: Callable[[str], Project], tmp_path: Path) -> Iterator[Service]:
    with cache_server(tmp_path / "served") as server:
        yield Service(project("two_methods"), tmp_path, server)


def run_step(runner: Runner, job: str, name: str) -> str:
    return runner.run(steps_of(GITHUB["jobs"][job])[name]).check().output


def test_the_jobs_of_the_matrix_make_what_the_last_one_joins(service: Service, built: Callable[[str], Path]) -> None:
    planner = service.machine("plan")
    run_step(planner, "plan", "Plan")
    matrix = json.loads(planner.written("output")["matrix"])
    assert [job["only"] for job in matrix["include"]] == ["two_methods/default", "two_methods/portable"]
    for number, job in enumerate(matrix["include"]):
        machine = service.machine(f"lower-{number}", **{"matrix.only": job["only"]})
        assert "1 unit: 1 made, 0 cached before" in run_step(machine, "lower", "Lower")
    last = service.machine("wheel")
    run_step(last, "wheel", "Build")
    assert sha256(only(last.root / "dist", "*.whl")) == sha256(built("two_methods"))

    again = service.machine("again")
    run_step(again, "plan", "Plan")
    nothing = again.written("output")["matrix"]
    assert GITHUB["jobs"]["lower"]["if"] == f"needs.plan.outputs.matrix != '{nothing}'"


def test_parallel_jobs_of_gitlab_divide_the_units_among_them(service: Service, built: Callable[[str], Path]) -> None:
    (script,) = GITLAB["lower"]["script"]
    for index in ("2", "1"):
        machine = service.machine(index)
        node = {"CI_NODE_INDEX": index, "CI_NODE_TOTAL": "2", "HATCH_LOWER_SIGNING_KEY": PAIR.private}
        assert "1 unit: 1 made, 0 cached before" in machine.shell(["bash", "-ec", script], node).check().output
    last = service.machine("wheel")
    (script,) = GITLAB["wheel"]["script"]
    last.shell(["bash", "-ec", script], {}).check()
    assert sha256(only(last.root / "dist", "*.whl")) == sha256(built("two_methods"))


def test_every_step_is_run_but_the_installation() -> None:
    steps = {name: list(steps_of(job)) for name, job in GITHUB["jobs"].items()}
    assert steps == {"plan": ["Install", "Plan"], "lower": ["Install", "Lower"], "wheel": ["Install", "Build"]}
