"""Which variables of the environment are inputs of an export: those that were read, whoever read them.

No inputs are variables that have the same value in every build, and those that say where things are, unless the
project's own code reads them: what is found there is recorded. Where many variables were asked for at once, their glob
is recorded too: a variable that matches it and is set later is a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hatch_lower.build.environment import fixed_variables, matches
from hatch_lower.build.inputs.machine import CPU_INFORMATION, cpu_capability

if TYPE_CHECKING:
    from hatch_lower.build.inputs.observations import Observations

RECORDING_VARIABLES = ("HATCH_LOWER_RECORD", "LD_PRELOAD")
"""The variables that make a process write the log."""
PASSING = frozenset({*RECORDING_VARIABLES, "TMPDIR", "TMP", "TEMP", "PWD", "OLDPWD"})
"""Variables that are set anew in each build."""
TOOL = "HATCH_LOWER_*"
PLACES = ("PATH", "HOME", "PYTHON*", TOOL)


def globs_of(observations: Observations) -> tuple[str, ...]:
    """Return the globs of which all variables were asked for, by this process or one that it started."""
    return tuple(sorted({*observations.globs, *(["*"] if observations.handed_on else [])}))


def variables_of(observations: Observations) -> frozenset[str]:
    """Return the names of the variables that are inputs."""
    environment = observations.environment
    named = {name for name, is_own in observations.variables.items() if is_own or not matches(name, PLACES)}
    own = [glob for glob, is_own in observations.globs.items() if is_own]
    asked = {name for name in environment if matches(name, own) and not matches(name, [TOOL])}
    asked |= {name for name in environment if matches(name, globs_of(observations)) and not matches(name, PLACES)}
    return frozenset(named | asked) - known_variables(named | asked, environment)


def new_variables(recorded: Iterable[str], environment: Mapping[str, str]) -> frozenset[str]:
    """Return the variables of an environment that match a recorded glob and are not recorded themselves.

    Args:
        recorded: the names and globs of a record.
        environment: of the child process that an export would be run in.
    """
    globs = [each for each in recorded if "*" in each]
    found = {name for name in environment.keys() - set(recorded) if matches(name, globs) and not matches(name, PLACES)}
    return frozenset(found - known_variables(found, environment)) if found else frozenset()


def known_variables(names: Iterable[str], environment: Mapping[str, str]) -> set[str]:
    """Return which variables are no inputs whoever reads them: a build sets them, always alike or for itself."""
    fixed = fixed_variables(cpu_capability(CPU_INFORMATION))
    return {name for name in names if name in PASSING or (name in fixed and environment.get(name) == fixed[name])}
