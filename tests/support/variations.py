"""Builds of one project under circumstances that its wheel must not depend on."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.compilers import path_without_memory
from support.scenarios import Project, copy_project, only
from support.venv import REPOSITORY, run

SUPPORT = REPOSITORY / "tests" / "support"
SHIM_SOURCE = SUPPORT / "another_machine.c"
NOBODY = 65534
LARGE = ("torch", "sympy", "mpmath")
"""Packages of which an export imports so much that compiling it takes longer than the export."""
DAY = 24 * 60 * 60
INSTRUCTIONS_OF_OTHERS = re.compile(r" (avx512\w*|avx_vnni|amx\w*)")


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What may differ between two builds; each field's default is how it mostly is.

    Args:
        folder: the part of the path in which sources and wheels lie.
        sdist: whether the wheel is built from the unpacked source distribution.
        home: the name of the home folder.
        temporary: the name of the folder for temporary files.
        user: the number of the user and the group, or `None` for this process's.
        umask: of the build.
        locale: its name; it is made if it is none of the C library's own.
        time_zone: of the build.
        clock: seconds by which it is ahead.
        hash_seed: of Python's strings.
        listed_backwards: whether folders list what is in them in the opposite order.
        processors: how many there are; all that there are for 0. OpenMP has as many threads, in the child too.
        machine: whether the host's name, kernel, processor and caches are others.
        jobs: how many models are lowered at once.
        frontend: what runs the hook.
    """

    folder: str = "a"
    sdist: bool = False
    home: str = "home"
    temporary: str = "temporary"
    user: int | None = None
    umask: int = 0o022
    locale: str = "C.UTF-8"
    time_zone: str = "UTC"
    clock: int = 0
    hash_seed: int = 1
    listed_backwards: bool = False
    processors: int = 0
    machine: bool = False
    jobs: int = 1
    frontend: str = "hatchling"


def can_change_user() -> bool:
    """Return whether a build can be run as somebody else who may still read this interpreter."""
    return os.geteuid() == 0 and shutil.which("setpriv") is not None


PLAIN = Circumstances()
OTHER = Circumstances(
    folder="another longer folder/b",
    sdist=True,
    home="home of nobody",
    temporary="elsewhere",
    user=NOBODY if can_change_user() else None,
    umask=0o077,
    locale="et_EE.UTF-8",
    time_zone="Asia/Kathmandu",
    clock=400 * DAY + 5 * 60 * 60,
    hash_seed=4242,
    listed_backwards=True,
    processors=8,
    machine=True,
    jobs=2,
    frontend="pip",
)


@dataclass(frozen=True, slots=True)
class Varied:
    """Builds of the scenario `varied`, each in a folder of its own below `folder`."""

    folder: Path

    def wheel(self, name: str, circumstances: Circumstances, variables: Mapping[str, str] | None = None) -> Path:
        """Build the wheel and return it.

        Args:
            name: of this build; for a name that was there before, the same sources and cache are built again.
            circumstances: of the build.
            variables: more environment variables.
        """
        place = self.folder / name
        project = self._project(place, circumstances)
        environment = {**self._environment(place, project, circumstances), **(variables or {})}
        if circumstances.sdist and not (project.root.parent / "sdist").exists():
            project = self._unpacked(place, project, circumstances, environment)
        self._run(place, frontend_command(circumstances.frontend, project), project.root, circumstances, environment)
        return only(project.dist, "*.whl")

    def log(self, name: str) -> dict[str, set[str]]:
        """Return what the processes of a build were told otherwise, by kind of process; `here` is always there."""
        found: dict[str, set[str]] = {}
        for line in (self.folder / name / "log").read_text().splitlines():
            what, _, command = line.partition("\t")
            for kind, words in KINDS.items():
                if re.search(words, command):
                    found.setdefault(kind, set()).add(what)
        return found

    def _project(self, place: Path, circumstances: Circumstances) -> Project:
        parent = place / circumstances.folder
        if (parent / "varied").exists():
            return Project(parent / "varied", parent / "dist", parent / "cache")
        parent.mkdir(parents=True)
        project = copy_project("varied", parent)
        # Weights are often ignored by git; `inputs` carries them into the sdist all the same.
        (project.root / ".gitignore").write_text("*.txt\n")
        project.edit("pyproject.toml", "jobs = 1", f"jobs = {circumstances.jobs}")
        return project

    def _environment(self, place: Path, project: Project, circumstances: Circumstances) -> dict[str, str]:
        home, temporary = place / circumstances.home, place / circumstances.temporary
        for folder in (home, temporary):
            folder.mkdir(exist_ok=True)
        threads = circumstances.processors or os.cpu_count() or 1
        given = {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path_without_memory()}",
            "TMPDIR": str(temporary),
            "LC_ALL": circumstances.locale,
            "LANG": circumstances.locale,
            "TZ": circumstances.time_zone,
            "PYTHONHASHSEED": str(circumstances.hash_seed),
            "OMP_NUM_THREADS": str(threads),
            "UV_CACHE_DIR": str(home / "uv"),
        }
        if not circumstances.locale.startswith("C"):
            given |= self._locale(circumstances.locale)
        if circumstances.clock or circumstances.listed_backwards or circumstances.processors or circumstances.machine:
            given |= {"LD_PRELOAD": str(self._shim()), "VARIED_LOG": str(place / "log")}
            (place / "log").touch()
            (place / "log").chmod(0o666)
        if circumstances.clock:
            given["VARIED_SECONDS"] = str(circumstances.clock)
            given["PYTHONPYCACHEPREFIX"] = str(self._bytecode(circumstances.clock))
        if circumstances.listed_backwards:
            given["VARIED_REVERSED"] = "1"
        if circumstances.processors:
            given["VARIED_PROCESSORS"] = str(circumstances.processors)
        if circumstances.machine:
            given |= {"VARIED_HOST": "another-host", "VARIED_CPUINFO": str(self._processor())}
            given["PYTHONPATH"] = str(SUPPORT / "another_processor")
        return project.environment(given)

    def _unpacked(
        self, place: Path, project: Project, circumstances: Circumstances, environment: Mapping[str, str]
    ) -> Project:
        made = project.root.parent / "sdist"
        command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(made)]
        self._run(place, command, project.root, circumstances, environment)
        archive = only(made, "*.tar.gz")
        run(["tar", "-xzf", archive, "-C", made]).check()
        return Project(made / archive.name.removesuffix(".tar.gz"), project.dist, project.cache)

    def _run(
        self,
        place: Path,
        command: list[str],
        folder: Path,
        circumstances: Circumstances,
        environment: Mapping[str, str],
    ) -> None:
        if circumstances.user is not None:
            give(place, circumstances.user)
            # Interpreter and tests may lie in a home folder: to be allowed to read everything is not to be root.
            right = "+dac_read_search"
            user = f"--reuid={circumstances.user}", f"--regid={circumstances.user}", "--clear-groups"
            command = ["setpriv", *user, f"--inh-caps={right}", f"--ambient-caps={right}", *command]
        if circumstances.processors and circumstances.processors < (os.cpu_count() or 1):
            command = ["taskset", "--cpu-list", f"0-{circumstances.processors - 1}", *command]
        before = os.umask(circumstances.umask)
        try:
            run(command, cwd=folder, environment=environment).check()
        finally:
            os.umask(before)

    def _shim(self) -> Path:
        """Return the library that makes a machine look like another one."""
        made = self.folder / "another_machine.so"
        if not made.exists():
            flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
            run(["gcc", *flags, "-o", made, SHIM_SOURCE, "-ldl", "-lpthread"]).check()
            made.chmod(0o755)
        return made

    def _bytecode(self, ahead: int) -> Path:
        """Return bytecode for sources whose times are so many seconds ahead.

        Each process would compile all of torch: what there is belongs to sources with other times.
        """
        made = self.folder / f"bytecode-{ahead}"
        if not made.exists():
            installed = Path(sysconfig.get_path("purelib"))
            for path in (path for name in LARGE for path in (installed / name).rglob("*.pyc")):
                data = path.read_bytes()  # two words, the time of the source, and the rest
                time = struct.unpack_from("<I", data, 8)[0] + ahead
                moved = made / path.parent.parent.relative_to("/") / path.name
                moved.parent.mkdir(parents=True, exist_ok=True)
                moved.write_bytes(data[:8] + struct.pack("<I", time % 2**32) + data[12:])
        return made

    def _processor(self) -> Path:
        """Return a `/proc/cpuinfo` of a processor that has AVX2 and nothing newer."""
        made = self.folder / "cpuinfo"
        if not made.exists():
            text = INSTRUCTIONS_OF_OTHERS.sub("", Path("/proc/cpuinfo").read_text())
            made.write_text(re.sub(r"(?m)^(model name\s*: ).*", r"\1Another Processor", text))
        return made

    def _locale(self, name: str) -> dict[str, str]:
        """Return variables with which a locale is found; without a tool to make it, programs fall back to `C`."""
        folder = self.folder / "locales"
        if shutil.which("localedef") and not (folder / name).exists():
            folder.mkdir(exist_ok=True)
            language, _, charset = name.partition(".")
            # it warns, and says so by its status, of what is not in POSIX
            subprocess.run(
                ["localedef", "-i", language, "-f", charset, str(folder / name)], capture_output=True, check=False
            )
        return {"LOCPATH": str(folder)}


KINDS = {
    "parent": r"-m hatchling build|pyproject_hooks|uv build",
    "child": r"-m hatch_lower\.driver\.worker",
    "compiler": r"cc1plus",
    "assembler": r"(^|/)as ",
    "linker": r"(^|/)ld ",
}
"""What the command of each kind of process has in it."""


def frontend_command(frontend: str, project: Project) -> list[str]:
    """Return the command that builds into the project's folder for wheels with what is installed here."""
    tools, dist = Path(sys.executable).parent, str(project.dist)
    return {
        "hatchling": [str(word) for word in project.command()],
        "pip": [
            *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"),
            *("--wheel-dir", dist, "."),
        ],
        "build": [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", dist],
        "uv": [
            *(str(tools / "uv"), "build", "--wheel", "--no-build-isolation", "--offline", "--python", sys.executable),
            *("--out-dir", dist),
        ],
    }[frontend]


def give(folder: Path, user: int) -> None:
    """Make everything below a folder a user's."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)
