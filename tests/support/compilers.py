"""C++ compilers for tests: one that compiles nothing twice in a run, and some with a fault.

These are scripts that answer what a build asks of a compiler, and go wrong at one step.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HEAD = """#!/bin/sh
for last in "$@"; do :; done
case " $* " in
*" --version "*|*" -Wl,--version "*) echo "g++ (of a test) 1.0"; exit 0;;
*" -c "*) step=compile;;
*) step=link;;
esac
"""

EMPTY_OBJECT = """if [ $step = compile ]; then echo | REAL -x c++ - -c -o "$last"; exit; fi
"""
# A library in a moment: it has what is looked for in one, and no more.
LIBRARY = """printf '%s\\n' 'BEFORE' 'extern "C" int AOTInductorModelContainerRun(...) { return 1; }' \\
    | REAL -shared -fPIC -x c++ - -o "$last"
"""
CRASHING = "__attribute__((constructor)) static void start() { __builtin_trap(); }"

FAULTS: Mapping[str, str] = {
    "hangs": 'echo $$ > "MARKER"; trap "" TERM; while :; do sleep 1; done',
    "crashes": "kill -SEGV $$",
    "is killed": "kill -KILL $$",
    "fails at length": """i=0
while [ $i -lt 400 ]; do echo "In file included from a/header.h:$i,"; i=$((i+1)); done >&2
echo "wrapper.cpp:7:1: error: unknown type name 'AOTI'" >&2
while [ $i -lt 800 ]; do echo "    7 | AOTI model;" ; i=$((i+1)); done >&2
exit 1""",
    "prints megabytes": """head -c 8000000 /dev/zero | tr '\\0' 'x' >&2
echo >&2; echo 'fatal error: no more' >&2; exit 4""",
    "says nothing": "exit 2",
    "writes nothing": "exit 0",
    "writes an empty file": ': > "$last"',
    "writes text": 'echo "not an object" > "$last"',
    "writes no library": EMPTY_OBJECT + "exit 0",
    "writes half a library": EMPTY_OBJECT
    + LIBRARY.replace("BEFORE", "")
    + 'head -c 9000 "$last" > "$last.half"; mv "$last.half" "$last"',
    "writes an object for a library": EMPTY_OBJECT + 'echo | REAL -x c++ - -c -o "$last"',
    "writes another library": EMPTY_OBJECT + 'echo | REAL -shared -fPIC -x c++ - -o "$last"',
    "writes a library that crashes when it is loaded": EMPTY_OBJECT + LIBRARY.replace("BEFORE", CRASHING),
    "writes a library that has no model": EMPTY_OBJECT + LIBRARY.replace("BEFORE", ""),
    "writes a library that computes something else": """case " $* " in
*" kernels.cpp "*) sed -i 's/\\(tmp[0-9]*\\)\\.store(/(\\1 + decltype(\\1)(1)).store(/' kernels.cpp;;
esac
exec REAL "$@" """,
}
"""What goes wrong → the rest of the script."""


@dataclass(frozen=True, slots=True)
class FaultyCompiler:
    """A script to set `CXX` to.

    Args:
        path: the script.
        marker: a file into which a hanging one writes its process id.
    """

    path: Path
    marker: Path

    def variables(self) -> dict[str, str]:
        """Return the variables with which a build uses it."""
        return {"CXX": str(self.path)}

    def repair(self) -> None:
        """Let it do what a compiler does; it still calls itself what it called itself."""
        write_script(self.path, f'exec {real_compiler()} "$@"')


def make_compiler(folder: Path, fault: str) -> FaultyCompiler:
    """Write a compiler into `folder`.

    Args:
        folder: an existing folder.
        fault: one of `FAULTS`.
    """
    compiler = FaultyCompiler(folder / "faulty-g++", folder / "compiling")
    write_script(compiler.path, FAULTS[fault].replace("REAL", real_compiler()).replace("MARKER", str(compiler.marker)))
    return compiler


def write_script(path: Path, body: str) -> None:
    """Write an executable script."""
    path.write_text(f"{HEAD}{body}\n")
    path.chmod(0o755)


def real_compiler() -> str:
    """Return the path of the compiler that works."""
    found = shutil.which("g++")
    assert found is not None, "these tests need g++"
    return found


REMEMBERING = Path(__file__).parent / "remembering"
REMEMBERING_C = Path(__file__).parent / "remembering_c"
FOLDER = "remembering-compiler"


def write_remembering_compilers(folder: Path) -> None:
    """Write compilers into `folder` that give what the real ones give, and compile nothing twice in a run."""
    memory, scripts = folder / "memory", folder / FOLDER
    memory.mkdir()
    scripts.mkdir()
    for name, real, source in [("g++", real_compiler(), REMEMBERING), ("cc", shutil.which("cc"), REMEMBERING_C)]:
        if real is not None:
            script = scripts / name
            script.write_text(source.read_text().replace("REAL", real).replace("MEMORY", str(memory)))
            script.chmod(0o755)


def path_without_memory() -> str:
    """Return `PATH` without that compiler: for tests whose subject is that equal sources give equal objects."""
    entries = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if Path(entry).name != FOLDER)
