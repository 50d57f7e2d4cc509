"""What `pytest --hatch-lower-backend ID` collects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_lower.testing.parametrised import judge

if TYPE_CHECKING:
    from hatch_lower.testing.kit import Kit


def test_backend(hatch_lower_kit: Kit, hatch_lower_trial: str) -> None:
    """Run one program or check."""
    judge(hatch_lower_kit.run(hatch_lower_trial))
