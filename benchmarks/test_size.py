"""The wheel of two methods and two recipes against its weights once."""

from __future__ import annotations

from typing import Any

import pytest
from support.scenarios import only

BERT_PARAMETERS = 109_482_240
BYTES_EACH = 4


@pytest.mark.benchmark(group="size")
def test_wheel_of_two_methods_and_two_recipes(bench: Any, with_portable: Any) -> None:
    project = bench.project("bert")
    with_portable(project)
    bench.benchmark.pedantic(lambda: project.build().check(), rounds=1)
    size = only(project.dist, "*.whl").stat().st_size
    weights = BERT_PARAMETERS * BYTES_EACH
    bench.report(
        "wheel, 2 methods x 2 recipes",
        f"{size / 1e6:.1f} MB / {weights / 1e6:.1f} MB of weights = {size / weights:.4f}",
        "<= 1.05",
        size=size,
        weights=weights,
        ratio=size / weights,
    )
