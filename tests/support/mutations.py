"""The project `many_inputs` with all that its export reads, changes of one thing at a time, and look-ups in between.

A look-up is what `hatch-lower explain` does. It is made in a fork of a process that has looked at nothing yet, so
nothing is remembered from one to the next but what the cache's folder holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any
from zipfile import ZipFile, ZipInfo

from support.scenarios import Project, copy_project
from support.venv import child_environment

SERVER = """
import json, os, sys
import email.headerregistry, logging, packaging.requirements, packaging.tags, packaging.utils, traceback
import hatchling.builders.hooks.custom, hatchling.builders.hooks.version, hatchling.builders.wheel
import hatchling.bridge.app, hatchling.metadata.core, hatchling.plugin.manager, hatchling.plugin.specs
import hatchling.version.core
import hatch_lower.driver.build, hatch_lower.cli.explain
import hatch_lower.driver.explain, hatch_lower.driver.diff.words
import hatch_lower.hatch.hooks, hatch_lower.hatch.outside, hatch_lower.hatch.plugin, hatch_lower.hatch.project
plain = [entry for entry in sys.path if entry]
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.path[:] = [entry for entry in asked["environment"]["PYTHONPATH"].split(os.pathsep) if entry] + plain
        sys.path_importer_cache.clear()
        os.chdir(asked["folder"])
        project = hatch_lower.hatch.outside.open_project(asked["root"])
        report = hatch_lower.cli.explain.explain_report(project, [each.name for each in project.settings.models])
        assert "torch" not in sys.modules
        print(json.dumps(report["next"]), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        print("null", flush=True)
"""
"""Answers each line of requests with a line of what is known of each model; what goes wrong is said on stderr."""


class LookUps:
    """The process that makes look-ups; as a context manager, it ends with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
            cwd="/",
        )

    def __enter__(self) -> LookUps:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def ask(self, root: Path, environment: Mapping[str, str], folder: Path) -> Any:
        """Return what is known of each model of the project in `root`, asked in the working directory `folder`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"root": str(root), "environment": dict(environment), "folder": str(folder)}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        assert answer is not None, "the look-up failed"
        return answer


@dataclass(frozen=True, slots=True)
class World:
    """The project and what is around it.

    Args:
        project: the project, built once.
        beside: the folder of all that is on its search path: `installed` with distributions, `editable` with a loose
            module, `portion` with a part of a namespace package; and `bin`, first on `PATH`.
        archive: the last entry of the search path; an archive is known by its absolute path.
        variables: of the build; an empty one is not set.
        look_ups: the process that makes look-ups.
    """

    project: Project
    beside: Path
    archive: Path
    variables: dict[str, str]
    look_ups: LookUps

    @property
    def root(self) -> Path:
        """The project's folder."""
        return self.project.root

    @property
    def data(self) -> Path:
        """The folder of its data."""
        return self.project.root / "many_inputs" / "data"

    @property
    def _folders(self) -> tuple[Path, ...]:
        return self.root, self.beside, self.archive.parent

    def search_path(self) -> str:
        """Return `PYTHONPATH`."""
        folders = (str(self.beside / name) for name in ("installed", "editable", "portion"))
        return os.pathsep.join((*folders, str(self.archive)))

    def environment(self) -> dict[str, str]:
        """Return the variables of a build, as additions to those of this process."""
        path = f"{self.beside / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return self.project.environment({"PYTHONPATH": self.search_path(), "PATH": path, **self.variables})

    def changes(self, model: str = "many", folder: Path | None = None) -> list[str] | None:
        """Return what has changed for a model since the build, in words; `None` if it would not be exported again."""
        removed = {name for name, value in self.variables.items() if not value}
        given = child_environment(self.environment())
        environment = {name: value for name, value in given.items() if name not in removed}
        answer = self.look_ups.ask(self.root, environment, folder or self.root)[model]
        assert answer["unknown"] == []
        return None if answer["unchanged"] else [*answer["changes"], *answer["settings"]]

    def spelled(self, texts: Iterable[str]) -> list[str]:
        """Return texts with paths in the place of `BESIDE` and `ARCHIVE`."""
        return [each.replace("BESIDE", str(self.beside)).replace("ARCHIVE", str(self.archive)) for each in texts]

    def moved(self, folder: Path) -> World:
        """Return copies of the project and of what is beside it, with the same cache."""
        shutil.copytree(self.root, folder / "checkout", symlinks=True)
        shutil.copytree(self.beside, folder / "environment", symlinks=True)
        return replace(self, project=replace(self.project, root=folder / "checkout"), beside=folder / "environment")

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Put every file and every variable back in the end."""
        before, variables = entries_of(*self._folders), dict(self.variables)
        try:
            yield
        finally:
            restore(before, *self._folders)
            self.variables.clear()
            self.variables.update(variables)


Entry = tuple[str, bytes, int, int]
"""Kind, contents or target, mode, and time of the last change."""


def entries_of(*folders: Path) -> dict[Path, Entry]:
    """Return all that is below folders."""
    return {path: entry_at(path) for folder in folders for path in sorted(folder.rglob("*"))}


def entry_at(path: Path) -> Entry:
    """Return what is at a path."""
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        return "link", os.fsencode(os.readlink(path)), 0, 0
    if stat.S_ISDIR(found.st_mode):
        return "folder", b"", mode, 0
    return "file", path.read_bytes(), mode, found.st_mtime_ns


def restore(before: Mapping[Path, Entry], *folders: Path) -> None:
    """Make folders hold what they held."""
    for path, now in sorted(entries_of(*folders).items(), reverse=True):  # what is in a folder before the folder
        was = before.get(path)
        if was is not None and was[0] == now[0] == "folder":
            path.chmod(was[2])
        elif was != now:
            path.rmdir() if now[0] == "folder" else path.unlink()
    for path, (kind, content, mode, moment) in before.items():
        if os.path.lexists(path):
            continue
        if kind == "link":
            path.symlink_to(os.fsdecode(content))
        elif kind == "folder":
            path.mkdir(mode)
        else:
            path.write_bytes(content)
            path.chmod(mode)
            os.utime(path, ns=(moment, moment))


def make_world(folder: Path, look_ups: LookUps) -> World:
    """Copy the project into a folder, and make what is not kept in the repository: binary files, distributions."""
    project = copy_project("many_inputs", folder)
    beside = folder / "beside"
    for name in ("installed", "editable", "portion/many_space", "bin"):
        (beside / name).mkdir(parents=True)
    install(beside / "installed", "fake-installed", "1.0", {"fake_installed.py": "NUMBER = 1\n"})
    install(beside / "installed", "fake-asked", "2.0", {"fake_asked.py": ""})
    (beside / "editable" / "loose.py").write_text("NUMBER = 1\n")
    (beside / "portion" / "many_space" / "there.py").write_text("NUMBER = 1\n")
    archive = folder / "archives" / "zipped.zip"
    archive.parent.mkdir()
    write_archive(archive, "NUMBER = 1\n")
    variables = {"MANY_SET": "1", "MANY_TOKEN": "1", "MANY_C": "1", "MANY_SHELL": "1", "USER": "somebody"}
    world = World(project, beside, archive, variables, look_ups)
    write_data(world.data)
    return world


def write_data(data: Path) -> None:
    """Write the binary files, and the link."""
    import torch
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(3, 3)}, data / "weights.safetensors")
    save_file({"bias": torch.ones(3)}, data / "tensors.safetensors")
    torch.save({"bias": torch.ones(3)}, data / "state.pt")
    (data / "raw.bin").write_bytes(bytes(16))
    write_array(data / "array.npy", 1)
    write_table(data / "table.sqlite", "create table numbers (number integer)", "insert into numbers values (1)")
    write_native(data / "native.so", 1)
    (data / "target.txt").write_text("target\n")
    (data / "linked.txt").symlink_to("target.txt")
    for name in ("first", "second"):
        (data / name).mkdir()
        (data / name / "resolved.txt").write_text(f"{name}\n")
    (data / "current").symlink_to("first")
    (data / "named.txt").symlink_to("target.txt")


def write_array(path: Path, number: int) -> None:
    """Write one number as NumPy does, whether it is there or not."""
    head = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }"
    head = head.ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + number.to_bytes(8, "little"))


def write_table(path: Path, *statements: str) -> None:
    """Run statements in a database."""
    connection = sqlite3.connect(path)
    try:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    finally:
        connection.close()


def write_native(path: Path, number: int) -> None:
    """Compile a library with a function that returns a number."""
    source = f"int number(void) {{ return {number}; }}\n"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)


def write_archive(path: Path, text: str) -> None:
    """Write a zip archive with the module `zipped`; the same text is the same archive."""
    with ZipFile(path, "w") as archive:
        archive.writestr(ZipInfo("zipped.py"), text)


def install(folder: Path, name: str, version: str, files: Mapping[str, str]) -> None:
    """Do what an installer does: files, METADATA and RECORD, in place of an earlier version."""
    stem = name.replace("-", "_")
    for earlier in folder.glob(f"{stem}-*.dist-info"):
        shutil.rmtree(earlier)
    information = f"{stem}-{version}.dist-info"
    written = {f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", **files}
    rows = []
    for path, text in written.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        rows.append(f"{path},sha256={hashlib.sha256(text.encode()).hexdigest()},{len(text.encode())}")
    (folder / information / "RECORD").write_text("\n".join([*rows, f"{information}/RECORD,,", ""]))
