"""Loading a model in a fresh process against `aoti_load_package` with a warm cache."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.benchmark(group="load")
def test_loading_a_bert(bench: Any, lowered: Any, by_hand: Any, median_of: Any) -> None:
    site = lowered("bert")
    package, warm = by_hand("bert")
    bench.script("load.py", "by_hand", package, environment=warm)  # fills what loading itself compiles
    hand = median_of(5, lambda: bench.script("load.py", "by_hand", package, environment=warm)["seconds"])
    times: list[float] = []

    def load() -> None:
        times.append(bench.script("load.py", "lowered", site, "bert")["seconds"])

    bench.benchmark.pedantic(load, rounds=5, warmup_rounds=1)
    seconds = sorted(times[1:])[2]
    bench.report(
        "load() of a BERT, fresh process",
        f"{seconds * 1e3:.0f} ms / {hand * 1e3:.0f} ms aoti_load_package = {seconds / hand:.3f}",
        "<= 0.1 and < 100 ms",
        seconds=seconds,
        by_hand_seconds=hand,
        ratio=seconds / hand,
    )
