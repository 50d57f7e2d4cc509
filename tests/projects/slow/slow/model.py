"""An export that says that it began, and does not end: something to interrupt."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hatch_lower import Model


def export() -> Model:
    marker = Path(os.environ["SLOW_MARKER"])
    marker.with_suffix(".new").write_text(str(os.getpid()))
    marker.with_suffix(".new").rename(marker)
    time.sleep(600)
    raise AssertionError("nobody interrupted it")
