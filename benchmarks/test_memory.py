"""Physical memory after loading and running both methods and both recipes against the weights once."""

from __future__ import annotations

from typing import Any

import pytest

BERT_PARAMETERS = 109_482_240
BYTES_EACH = 4


@pytest.mark.benchmark(group="memory")
def test_both_methods_and_both_recipes_of_a_bert(bench: Any, lowered: Any) -> None:
    site = lowered("bert")
    torch_itself = bench.script("memory.py", "torch")["before"]
    reports: list[dict[str, int]] = []
    bench.benchmark.pedantic(lambda: reports.append(bench.script("memory.py", site, "bert")), rounds=1)
    weights = BERT_PARAMETERS * BYTES_EACH
    more = reports[0]["after"] - torch_itself
    bench.report(
        "memory, both methods and recipes of a BERT",
        f"{more / 1e6:.0f} MB beyond torch's {torch_itself / 1e6:.0f} MB / {weights / 1e6:.0f} MB = "
        f"{more / weights:.3f}",
        "<= 1.15",
        more=more,
        torch_itself=torch_itself,
        weights=weights,
        ratio=more / weights,
    )
