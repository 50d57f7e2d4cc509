"""Faults of what a build calls: memory that runs out, compilers and backends that go wrong in every way.

Each build ends with the right wheel, or with one paragraph and nothing left behind; and once the fault is mended, the
next build makes the right wheel. A long run tries all faults, and mends each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.compilers import FAULTS, make_compiler
from support.effort import LONG
from support.processes import is_running, wait_for, with_variable
from support.scenarios import Project, copy_project, only, sha256, tree
from support.venv import run

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

PYPROJECT = "pyproject.toml"


@dataclass(frozen=True, slots=True)
class Place:
    """A project, and all that a build of it may write to."""

    project: Project
    temporary: Path
    marker: Path

    def variables(self, additions: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables of a build."""
        plugin = {"PYTHONPATH": str(self.project.root / "plugin"), "HATCH_LOWER_TEST_MARKER": str(self.marker)}
        return {**plugin, "TMPDIR": str(self.temporary), "PYTHONDONTWRITEBYTECODE": "1", **(additions or {})}

    def fails(self, variables: Mapping[str, str] | None = None, kilobytes: int | None = None) -> str:
        """Build, see that it fails and leaves nothing, and return the paragraph that it fails with."""
        paragraph = self.ends(variables, kilobytes)
        assert paragraph, "it succeeded"
        return paragraph

    def ends(self, variables: Mapping[str, str] | None = None, kilobytes: int | None = None) -> str:
        """Build, see that a failure leaves nothing, and return its paragraph; nothing for a success.

        Args:
            variables: of the build.
            kilobytes: of address space that each of its processes may have.
        """
        before = tree(self.project.root)
        command = self.project.command()
        if kilobytes is not None:
            command = ["sh", "-c", f'ulimit -v {kilobytes}; exec "$@"', "sh", *command]
        environment = self.project.environment(self.variables(variables))
        done = run(command, cwd=self.project.root, environment=environment)
        if done.status == 0:
            return ""
        assert done.status == 1, done.output
        assert "Traceback" not in done.stderr, done.stderr
        _, found, paragraph = done.stderr.partition("hatch-lower: ")
        assert found, done.stderr
        assert "hatch-lower: " not in paragraph, "it is said once"
        assert self.project.left_behind() == []
        assert list(self.temporary.iterdir()) == []
        assert tree(self.project.root) == before
        self.sees_no_process()
        return "\n".join(line.rstrip() for line in paragraph.strip().splitlines())

    def succeeds(self, variables: Mapping[str, str] | None = None) -> str:
        """Build, see that it leaves nothing but the wheel, and return that one's digest."""
        before = tree(self.project.root)
        self.project.build(environment=self.variables(variables)).check()
        wheel = only(self.project.dist, "*")
        assert list(self.temporary.iterdir()) == []
        assert tree(self.project.root) == before
        self.sees_no_process()
        return sha256(wheel)

    def sees_no_process(self) -> None:
        """Wait for the processes of a build to end."""
        variable = ("HATCH_LOWER_CACHE_DIR", str(self.project.cache))
        wait_for(lambda: not with_variable(*variable), "every process of the build to end")


def place(name: str, folder: Path) -> Place:
    """Copy a scenario into a folder."""
    (folder / "temporary").mkdir()
    return Place(copy_project(name, folder), folder / "temporary", folder / "marker")


@pytest.fixture
def faulty(tmp_path: Path) -> Place:
    """A project with the backend `faulty`, which works unless it is told what to do instead."""
    return place("faulty_backend", tmp_path)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the wheel of that project."""
    return place("faulty_backend", tmp_path_factory.mktemp("right")).succeeds()


def fault(text: str) -> dict[str, str]:
    return {"HATCH_LOWER_TEST_FAULT": text}


def chosen(always: list[str], at_length: list[str]) -> list[str]:
    return [*always, *at_length] if LONG else always


PLACE = "model `faulty`, recipe `default`"
REPORT = "leave the backend out of the recipe, or report this to its authors"
MEMORY = (
    "set `jobs = 1`, so that models are lowered one after the other; use smaller example inputs; or build on a machine"
    " with more memory"
)
ENDED = "something in the model's code or in a backend ended the process; the stage says which was at work"
RAISE = "let it raise an exception that says what is wrong"
MISMATCH = (
    "if the difference is acceptable, raise `rtol` and `atol` in the hook's table; if not, leave out backends to find"
    " the backend that causes the difference, and report it there"
)
LOST = (
    "leave out backends to find the backend at fault, and report the error there; the next build lowers the program"
    " again"
)


def failed(found: str, where: str = PLACE) -> str:
    return f"the backend `faulty` failed\n  where: {where}\n  found: {found}\n  to do: {REPORT}"


def memory(found: str, where: str = "model `faulty`") -> str:
    return f"the build process ran out of memory\n  where: {where}\n  found: {found}\n  to do: {MEMORY}"


def wrong_field(name: str, expected: str, found: str) -> str:
    return (
        f"the backend `faulty` returned a result whose `{name}` is not {expected}\n"
        f"  where: {PLACE}, method `forward`\n  found: {found}\n"
        "  to do: correct the `PreprocessResult` that `preprocess` returns, or leave the backend out"
    )


def ended(status: int) -> str:
    return (
        f"the build process ended with exit status {status} and no result\n"
        f"  where: model `faulty`, stage `compile` of `faulty/default`\n  to do: {ENDED}"
    )


RAISED = "ValueError: the machine is not there"
LINES = [f"line {i} of many" for i in range(1, 12)]
MESSAGES = {
    "preprocess raises": failed(RAISED),
    "preprocess raises long": failed("\n    ".join(["ValueError: line 0 of many", *LINES, "…"])),
    "preprocess raises nothing": failed("ValueError"),
    "preprocess base": failed("BaseException: of no kind that is caught"),
    "preprocess exit": failed("SystemExit: 0"),
    "preprocess exit 5": failed("SystemExit: 5"),
    "preprocess exit text": failed("SystemExit: no licence for this machine"),
    "preprocess interrupt": failed("KeyboardInterrupt"),
    "preprocess generator": failed("GeneratorExit"),
    "preprocess recursion": failed("RecursionError: maximum recursion depth exceeded"),
    "preprocess memory": memory("MemoryError"),
    "preprocess allocator": memory(
        "MemoryError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
    ),
    "preprocess thread+exit": failed("SystemExit: 0"),
    "preprocess _exit 0": ended(0),
    "preprocess child+_exit 3": ended(3),
    "preprocess kill group": "the model's code or a backend tried to end the build process\n"
    f"  where: model `faulty`\n  found: os.killpg(0, SIGKILL)\n  to do: {RAISE}",
    "preprocess hang up": "the model's code or a backend tried to end the build process\n"
    f"  where: model `faulty`\n  found: os.kill(0, SIGHUP)\n  to do: {RAISE}",
    "begin weights": "the backend `faulty` changed the model's weights\n"
    f"  where: {PLACE}, method `forward`\n"
    "  found: other contents after `preprocess` than before\n"
    "  to do: override `copy_exported_program_for_preprocess` to copy the tensors that `preprocess` changes",
    "partition program": "the partitioner changed the program\n"
    f"  where: {PLACE}, `FaultyPartitioner.partition`\n"
    "  found: another graph than before: an operation, an argument, a literal or a signature differs\n"
    "  to do: only write `node.meta['delegation_tag']`; change graphs in a pass before partitioning",
    "preprocess type": "the backend `faulty` did not return a `PreprocessResult`\n"
    f"  where: {PLACE}, method `forward`\n  found: 42\n"
    "  to do: define `preprocess(edge_program, compile_specs)` as a static method that returns the result",
    "preprocess text": wrong_field("processed_bytes", "bytes", "'a text'"),
    "preprocess suffix": wrong_field(
        "suffix", "the end of a file's name: letters, digits, dots, dashes", "'../../../escaped'"
    ),
    "preprocess suffix type": wrong_field("suffix", "the end of a file's name: letters, digits, dots, dashes", "3"),
    "preprocess requirements": wrong_field(
        "requirements", "a tuple of requirements as in `pyproject.toml`", "('no requirement at all ===',)"
    ),
    "preprocess requirements type": wrong_field("requirements", "a tuple of strings", "3"),
    "preprocess target": wrong_field("target", "a `Target` or `None`", "'here'"),
    "preprocess info type": wrong_field("info", "a mapping", "17"),
    "preprocess handles": wrong_field(
        "debug_handle_map",
        "a mapping of identifiers to tuples of the nodes' debug handles, or `None`",
        "{'a': ('b', None)}",
    ),
    "partitioner exit": failed("SystemExit: 0", "recipe `default`, backend `faulty`"),
    "partitioner none": "the backend `faulty` returned a value that is not a `Partitioner`\n"
    "  where: recipe `default`, backend `faulty`\n  found: None\n"
    "  to do: return a `Partitioner` from the classmethod `partitioner(options)`",
    "partition raises": failed(RAISED),
    "wishes raises": failed(RAISED, f"{PLACE}, method `forward`"),
    "fingerprint raises": failed(RAISED),
    "fingerprint none": failed("AttributeError: 'NoneType' object has no attribute 'items'"),
    "tools raises": failed(RAISED, "recipe `default`"),
    "import exit": failed("SystemExit: 0", "recipe `default`, backend `faulty`"),
    "load exit": f"the lowered program cannot be loaded\n  where: {PLACE}\n  found: SystemExit: 0\n  to do: {LOST}",
    "load raises": f"the lowered program cannot be loaded\n  where: {PLACE}\n"
    f"  found: the delegate `faulty` cannot load its program: {RAISED}\n  to do: {LOST}",
    "run exit": "the lowered method fails where the eager module does not\n"
    f"  where: {PLACE}, method `forward`, example inputs\n  found: SystemExit: 0\n  to do: {MISMATCH}",
    "run few": "the lowered method fails where the eager module does not\n"
    f"  where: {PLACE}, method `forward`, example inputs\n"
    f"  found: IndexError: list index out of range\n  to do: {MISMATCH}",
}
ALWAYS = ["preprocess thread+exit", "tools raises"]
"""A backend that ends its process, and one that fails outside of `preprocess`."""


@pytest.mark.parametrize("what", chosen(ALWAYS, [each for each in MESSAGES if each not in ALWAYS]))
def test_a_backend_that_fails(faulty: Place, right: str, what: str) -> None:
    assert faulty.fails(fault(what)) == MESSAGES[what]
    if LONG:
        assert faulty.succeeds() == right


CRASHES = {
    "preprocess overwrite": ("the build process crashed (SIGSEGV)", "in overwrite"),
    "preprocess free": ("the build process crashed (SIGABRT)", "in free_wildly"),
    "run overwrite": ("the build process crashed (SIGSEGV)", "in overwrite"),
    "load bad_alloc": ("the build process ran out of memory", "in abort_as_cpp"),
}


@pytest.mark.parametrize(
    "what", chosen(["preprocess overwrite"], ["load bad_alloc", "preprocess free", "run overwrite"])
)
def test_a_backend_that_crashes(faulty: Place, right: str, what: str) -> None:
    first, call = CRASHES[what]
    message = faulty.fails(fault(what))
    stage = "compile` of `faulty/default`" if what.startswith("preprocess") else "compare` of `faulty/default.forward`"
    assert message.startswith(f"{first}\n  where: model `faulty`, stage `{stage}\n  found: Fatal Python error: ")
    assert call in message, "the backend's own line"
    assert "hatch_lower/pipeline/lower_model.py" not in message
    if LONG:
        assert faulty.succeeds() == right


def test_a_backend_that_computes_something_else_is_asked_again_by_the_next_build(faulty: Place, right: str) -> None:
    faulty.project.edit(PYPROJECT, 'backends = ["faulty"]', 'backends = ["faulty"]\non-mismatch = "fail"')
    message = faulty.fails(fault("begin operation"))
    assert message.startswith(
        "the lowered method computes other numbers than the eager module\n"
        f"  where: {PLACE}, method `forward`, example inputs, its only output\n"
    )
    assert faulty.succeeds() == right


@pytest.mark.parametrize(
    "what",
    chosen(
        ["preprocess garbage+print+thread+child+disturb"],
        [
            "preprocess close all",
            *(f"preprocess {each}" for each in ("garbage", "print", "thread", "child", "disturb", "close pipe")),
            *(f"{each} disturb" for each in ("partitioner", "wishes", "partition", "fingerprint", "tools", "load")),
            *("run disturb", "run child", "load close all"),
        ],
    ),
)
def test_a_backend_that_disturbs_its_process_disturbs_no_wheel(faulty: Place, right: str, what: str) -> None:
    assert faulty.succeeds(fault(what)) == right


@pytest.mark.long
def test_a_server_that_a_backend_leaves_behind_does_not_keep_the_build_waiting(faulty: Place, right: str) -> None:
    assert faulty.succeeds(fault("preprocess server")) == right
    wait_for(lambda: not is_running(int(faulty.marker.read_text())), "the server to find that nobody listens")


@pytest.mark.long
@pytest.mark.parametrize("where", ["preprocess", "wishes", "run", "tools"])
def test_a_backend_that_never_ends(faulty: Place, right: str, where: str) -> None:
    faulty.project.edit(PYPROJECT, 'backends = ["faulty"]', 'backends = ["faulty"]\ntimeout = 60')
    message = faulty.fails(fault(f"{where} loop"))
    place = "model `faulty`\n" if where == "tools" else "model `faulty`, "  # tools are asked for before the first stage
    assert message.startswith(f"the build process took longer than its time limit of 60 s\n  where: {place}")
    assert faulty.succeeds() == right


MEBIBYTE = 1 << 10


def test_a_build_with_too_little_memory(faulty: Place, right: str) -> None:
    message = faulty.fails(kilobytes=500 * MEBIBYTE)
    assert message.startswith("the build process ran out of memory\n  where: model `faulty`")
    assert message.endswith(f"to do: {MEMORY}")
    if LONG:
        assert faulty.succeeds() == right


@pytest.mark.long
@pytest.mark.parametrize("mebibytes", range(560, 1200, 40))
def test_a_build_with_hardly_enough_memory(faulty: Place, right: str, mebibytes: int) -> None:
    message = faulty.ends(kilobytes=mebibytes * MEBIBYTE)
    assert not message or "memory" in message
    assert faulty.succeeds() == right


@pytest.mark.long
@pytest.mark.parametrize("mebibytes", range(1200, 2400, 150))
def test_a_build_with_too_little_memory_for_its_weights(faulty: Place, mebibytes: int) -> None:
    faulty.project.edit(PYPROJECT, 'backends = ["faulty"]', "backends = []")
    large = {"HATCH_LOWER_TEST_MEGABYTES": "200"}
    message = faulty.ends(large, mebibytes * MEBIBYTE)
    assert not message or "memory" in message
    faulty.succeeds(large)


# compilers

REFUSED = "the C++ compiler failed on the code that inductor generated"
NOT_WRITTEN = "the C++ compiler reported success, but wrote no output file"
CHECK = "check the compiler, or set CXX to another compiler"
LINKING = "model `tiny`, recipe `default`, faulty-g++ while linking"
COMPILING = "model `tiny`, recipe `default`, faulty-g++ interface.cpp"


def refused(found: str, *, what: str = REFUSED, where: str = COMPILING, hint: str = CHECK) -> str:
    return f"{what}\n  where: {where}\n  found: {found}\n  to do: {hint}"


def not_written(found: str, where: str = LINKING) -> str:
    return refused(found, what=NOT_WRITTEN, where=where)


COMPILERS = {
    "crashes": refused("ended by SIGSEGV, without a message"),
    "is killed": refused("ended by SIGKILL, without a message", hint="give the build more memory"),
    "says nothing": refused("exit status 2 without a message"),
    "fails at length": refused(
        "\n    ".join(["wrapper.cpp:7:1: error: unknown type name 'AOTI'", *["    7 | AOTI model;"] * 11, "…"])
    ),
    "prints megabytes": refused("fatal error: no more"),
    "writes nothing": not_written("there is no file `interface.o`", COMPILING),
    "writes an empty file": not_written("`interface.o` (0 bytes) is not an ELF file", COMPILING),
    "writes text": not_written("`interface.o` (14 bytes) is not an ELF file", COMPILING),
    "writes no library": not_written("there is no file `partition.so`"),
    "writes half a library": not_written("`partition.so` (9000 bytes) is cut off"),
    "writes an object for a library": not_written("`partition.so` is another kind of ELF file"),
    "writes another library": not_written("`partition.so` holds no model"),
}
OFTEN = ["writes half a library"]
"""`test_aoti` has what is said of a compiler that fails."""


@pytest.fixture
def tiny(tmp_path: Path) -> Place:
    """A project whose backend is `aoti`, and whose programs are not compared with eager."""
    found = place("tiny", tmp_path)
    found.project.edit(PYPROJECT, 'backends = ["null"]', 'backends = ["aoti"]')
    return found


def verify(tiny: Place) -> None:
    tiny.project.edit(PYPROJECT, "verify = false        # the null backend computes nothing", "verify = true")


@pytest.mark.parametrize("what", chosen(OFTEN, [each for each in COMPILERS if each not in OFTEN]))
def test_a_compiler_that_fails(tiny: Place, tmp_path: Path, what: str) -> None:
    compiler = make_compiler(tmp_path, what)
    assert tiny.fails(compiler.variables()) == COMPILERS[what]


@pytest.mark.long  # `test_build` ends a child whose time is over, and what it started
def test_a_compiler_that_hangs_ends_with_the_time_limit(tiny: Place, tmp_path: Path) -> None:
    compiler = make_compiler(tmp_path, "hangs")
    for seconds in (15, 120):  # on a busy machine the first may be over before the compiler is called
        tiny.project.edit(PYPROJECT, 'backends = ["aoti"]', f'backends = ["aoti"]\ntimeout = {seconds}')
        message = tiny.fails(compiler.variables())
        tiny.project.edit(PYPROJECT, f"\ntimeout = {seconds}", "")
        if compiler.marker.exists():
            break
    assert message == (
        f"the build process took longer than its time limit of {seconds} s\n"
        "  where: model `tiny`, stage `compile` of `tiny/default`\n"
        "  to do: raise `timeout` in the hook's table (seconds), or look at why this stage takes so long"
    )
    assert not is_running(int(compiler.marker.read_text()))


def test_a_library_that_crashes_when_it_is_loaded(tiny: Place, tmp_path: Path) -> None:
    verify(tiny)
    compiler = make_compiler(tmp_path, "writes a library that crashes when it is loaded")
    assert tiny.fails(compiler.variables()) == (
        "the build process crashed (SIGILL)\n"
        "  where: model `tiny`, stage `compare` of `tiny/default.forward`\n"
        "  found: Fatal Python error: Illegal instruction\n"
        "  to do: the last stage says which backend or operation was at work; lower the model without it to be sure"
    )


@pytest.mark.long
@pytest.mark.parametrize("what", [each for each in FAULTS if each.startswith("writes a library that")])
def test_a_compiler_that_is_repaired_compiles_again(tiny: Place, tmp_path: Path, what: str) -> None:
    verify(tiny)
    compiler = make_compiler(tmp_path, what)
    message = tiny.fails(compiler.variables())
    if what.endswith("something else"):
        assert message.startswith("the lowered method computes other numbers than the eager module\n")
    compiler.repair()
    tiny.succeeds(compiler.variables())


@pytest.mark.parametrize("what", chosen(["is not executable"], ["is a directory", "is no program"]))
def test_a_compiler_that_is_none(tiny: Place, tmp_path: Path, what: str) -> None:
    compiler = make_compiler(tmp_path, "says nothing").path
    if what == "is not executable":
        compiler.chmod(0o644)
    elif what == "is a directory":
        compiler.unlink()
        compiler.mkdir()
    else:
        compiler.write_bytes(b"\x7fELF and no more")
    message = tiny.fails({"CXX": str(compiler)})
    if what == "is no program":
        assert message.startswith("the C++ compiler cannot be run\n")
    else:
        assert message.startswith("no C++ compiler was found, and the backend `aoti` needs one to build\n")
