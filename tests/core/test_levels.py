"""The variables of a project that compiles for an instruction set level above the fixed values."""

from __future__ import annotations

from pathlib import Path

import pytest

from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.driver.environment import child_environment, level_variables

ONEDNN = "ONEDNN_MAX_CPU_ISA"


@pytest.mark.parametrize(("level", "value"), [("x86-64-v4", "AVX2"), ("x86-64-v4-vnni", "AVX512_CORE_VNNI")])
def test_a_project_for_vnni_needs_no_variable_of_the_user(level: str, value: str) -> None:
    given = {ONEDNN: "ALL"}
    own = level_variables([Recipe("plain"), Recipe("fast", (BackendChoice("aoti", {"isa": level}),))])
    assert child_environment(given, [], [], Path("work"), own=own)[ONEDNN] == value
    assert child_environment(given, [ONEDNN], [], Path("work"), own=own)[ONEDNN] == "ALL", "`pass-env` decides"
