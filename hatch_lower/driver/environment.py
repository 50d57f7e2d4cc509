"""The environment variables of the build's child processes: few of the caller's, some fixed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hatch_lower.config.settings import Recipe

# variables that choose the compiler and its options
COMPILER = (
    *("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "LIBRARY_PATH", "C_INCLUDE_PATH"),
    *("CPLUS_INCLUDE_PATH", "COMPILER_PATH", "SDKROOT", "DEVELOPER_DIR", "MACOSX_DEPLOYMENT_TARGET"),
    "CUDA_HOME",
)

# variables with the library folders of the dynamic loader, whose reads cannot be recorded
LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

# globs of the variables that a child process gets; `pass-env` adds globs
PASSED = (
    # where things are
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
    *("SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "PATHEXT", "APPDATA", "LOCALAPPDATA", "USERPROFILE"),
    # Python and its environment
    *("PYTHON*", "CONDA_PREFIX"),
    *COMPILER,
    *LOADER,
    # the GPUs that a comparison with eager may use
    "CUDA_VISIBLE_DEVICES",
    # this tool's own
    "HATCH_LOWER_*",
)

FRONTENDS = frozenset({"PYTHONIOENCODING"})  # variables that build frontends set for themselves: uv does

# Variables with the same value in every build, for equal models; `pass-env` can name a variable to pass the caller's
FIXED: Mapping[str, str] = {
    "LC_ALL": "C.UTF-8",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",  # no bytecode in the source tree
    "PYTHONUNBUFFERED": "1",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",  # sums depend on how they are divided over threads
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # and on the instructions that a library chooses by the processor
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}

# all processors with these instruction sets are treated as equal
ALIKE = frozenset({"avx2", "fma"})

# for these processors: torch takes the value without a look at the processor
AVX2: Mapping[str, str] = {"ATEN_CPU_CAPABILITY": "avx2"}


def child_environment(
    environment: Mapping[str, str],
    pass_env: Sequence[str],
    search_path: Sequence[str],
    temporary: Path,
    instruction_sets: str = "",
    own: Mapping[str, str] = {},
) -> dict[str, str]:
    # `own`: the variables that the project's recipes need, in place of fixed values
    passed = {name: value for name, value in environment.items() if matches(name, PASSED) and name not in FRONTENDS}
    asked = {name: value for name, value in environment.items() if matches(name, pass_env)}
    passed |= account_variables(passed)
    path = {"PYTHONPATH": os.pathsep.join(entry for entry in search_path if entry)}
    folders = dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(temporary))
    return {**passed, **fixed_variables(instruction_sets), **own, **folders, **asked, **path}


def account_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `USER` for a user without a name in the environment and without an entry in the password database."""
    if environment.keys() & {"USER", "LOGNAME"}:
        return {}
    import getpass

    try:
        getpass.getuser()
    except (KeyError, OSError):
        return {"USER": "nobody"}  # torch asks for the name, and fails without
    return {}


def fixed_variables(instruction_sets: str) -> Mapping[str, str]:
    return {**FIXED, **(AVX2 if set(instruction_sets.split()) >= ALIKE else {})}


# for projects that compile for a level above the fixed values: these programs run only with the level's instructions
OF_LEVELS: Mapping[str, Mapping[str, str]] = {"x86-64-v4-vnni": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}}


def level_variables(recipes: Iterable[Recipe]) -> dict[str, str]:
    """Return the variables of the instruction set levels that backends of a project's recipes name."""
    levels = sorted({str(choice.options.get("isa")) for recipe in recipes for choice in recipe.backends})
    return {name: value for level in levels for name, value in OF_LEVELS.get(level, {}).items()}


SPECIAL = frozenset("*?[")


def matches(name: str, globs: Sequence[str]) -> bool:
    return name in globs or any(fnmatchcase(name, glob) for glob in globs if SPECIAL.intersection(glob))
