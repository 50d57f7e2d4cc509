"""A small project whose export is recorded in a child process, as the build's own child does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from hatch_lower.cache.stats import StatCache
from hatch_lower.driver.environment import child_environment
from hatch_lower.driver.inputs.machine import marks_of_project
from hatch_lower.driver.inputs.preload import preload_environment
from hatch_lower.driver.inputs.present import Present, changes
from hatch_lower.driver.inputs.record import RecordedInputs
from hatch_lower.driver.inputs.roots import Roots
from hatch_lower.format.codec import decode

CHILD = """
import json, sys
from pathlib import Path
from hatch_lower.driver.inputs.collect import collect
from hatch_lower.driver.inputs.machine import marks_of_project
from hatch_lower.driver.inputs.present import Present
from hatch_lower.driver.inputs.roots import Roots
from hatch_lower.cache.stats import StatCache
from hatch_lower.driver.inputs.recorder import Recorder
from hatch_lower.format.codec import encode

project, work, log, began, globs, tools, metadata = json.loads(sys.argv[1])
project, work, log = Path(project), Path(work), log and Path(log)
recorded_path = [str(project / "src"), *(each for each in sys.path if each and each != str(work)), str(project)]
sys.path[:] = [str(work / "site"), *recorded_path]
recorder = Recorder([project], log)
recorder.start()
import digits
digits.export(recorder)
observations = recorder.observations()
recorder.stop()
added = [each for each in sys.path if each not in (*recorded_path, str(work / "site"))]
recorded_path += added
roots = Roots(project, tuple(map(Path, recorded_path)), Path(work, "home"), (work,))
stats = StatCache(work / "stats.json")
mark = marks_of_project("digits", "1.0", metadata)
present = Present(roots, observations.environment, b"secret", stats, mark)
inputs = collect(observations, present, began_ns=began, globs=globs, tools=tools)
Path(work, "inputs.json").write_text(json.dumps({"inputs": encode(inputs), "path": recorded_path}, sort_keys=True))
"""


class Project:
    """A project folder with the package `digits`, whose function `export` does what a test is about."""

    def __init__(self, folder: Path, library: Path | None) -> None:
        self.folder = folder
        self.library = library
        self.search_path: tuple[Path, ...] = ()
        self.environment: dict[str, str] = {}
        self.metadata = "Name: digits\nVersion: 1.0\n"
        self.write("src/digits/__init__.py", "from digits.model import export\n")

    def write(self, path: str, content: str | bytes = "") -> Path:
        """Write a file; it is as old as if it had been there before the build."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    def export(self, code: str) -> None:
        """Give `export(recorder)` a body."""
        body = textwrap.indent(textwrap.dedent(code).strip(), "    ")
        self.write("src/digits/model.py", f"import os, sys\n\n\ndef export(recorder):\n{body}\n")

    def record(
        self,
        code: str | None = None,
        *,
        globs: tuple[str, ...] = (),
        tools: tuple[str, ...] = (),
        site: Path | None = None,
        ahead_ns: int = 0,
        through: tuple[str, ...] = (),
        **variables: str,
    ) -> dict[str, Any]:
        """Return the recorded inputs of an export as JSON.

        Args:
            code: the body of `export`; without it that of before.
            globs: declared inputs.
            tools: commands on which the result depends.
            site: one more folder with installed distributions.
            through: a command that starts the child.
            ahead_ns: by how much the build's clock is ahead of the one that the files have their times from.
            variables: set for the child.
        """
        if code is not None:
            self.export(code)
        work = self.folder.parent / f"{self.folder.name}-work"
        work.mkdir(exist_ok=True)
        log = work / "log"
        log.unlink(missing_ok=True)
        search_path = [*([str(site)] if site else []), *sys.path]
        environment = child_environment({**os.environ, **variables}, tuple(variables), search_path, work)
        if self.library is not None:
            environment.update(preload_environment(self.library, log, environment))
        information = work / "site" / "digits-1.0.dist-info"
        information.mkdir(parents=True, exist_ok=True)
        (information / "METADATA").write_text(self.metadata)
        log_path = self.library and str(log)
        # what was written before is older than the build: the child takes longer than this to begin
        began = time.time_ns() + 50_000_000 + ahead_ns
        request = [str(self.folder), str(work), log_path, began, globs, tools, self.metadata]
        done = subprocess.run(
            [*through, sys.executable, "-c", CHILD, json.dumps(request)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads((work / "inputs.json").read_text())
        self.search_path = tuple(map(Path, found["path"]))
        self.environment = environment
        return found["inputs"]  # type: ignore[no-any-return]

    def changes(self, inputs: dict[str, Any], **variables: str) -> list[str]:
        """Return what has changed since the last recording, in words."""
        work = self.folder.parent / f"{self.folder.name}-work"
        roots = Roots(self.folder, self.search_path, work / "home", (work,))
        environment = {**self.environment, **variables}
        project = marks_of_project("digits", "1.0", self.metadata)
        present = Present(roots, environment, b"secret", StatCache(work / "stats.json"), project)
        return [change.text() for change in changes(decode(RecordedInputs, inputs, ""), present)]
