"""One call against the raw AOTInductor runner of the undecomposed export, and against eager."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.benchmark(group="call")
def test_a_small_network_on_one_thread(bench: Any, lowered: Any, by_hand: Any) -> None:
    times = measure(bench, lowered, by_hand, "mlp", 2000, 15, {"OMP_NUM_THREADS": "1"})
    over = times["lowered"] - times["runner"]
    bench.report(
        "one call, MLP, 1 thread",
        f"{times['lowered'] * 1e6:.1f} us, runner {times['runner'] * 1e6:.1f} us (+{over * 1e6:.1f} us), "
        f"eager {times['eager'] * 1e6:.1f} us",
        "<= runner + 15 us, <= eager",
        **times,
    )


@pytest.mark.benchmark(group="call")
def test_a_bert(bench: Any, lowered: Any, by_hand: Any) -> None:
    times = measure(bench, lowered, by_hand, "bert", 3, 9, {})
    ratio = times["lowered"] / times["runner"]
    bench.report(
        "one call, BERT 1x128",
        f"{times['lowered'] * 1e3:.1f} ms, runner {times['runner'] * 1e3:.1f} ms = {ratio:.3f}, "
        f"eager {times['eager'] * 1e3:.1f} ms",
        "<= 1.02",
        ratio=ratio,
        **times,
    )


def measure(
    bench: Any, lowered: Any, by_hand: Any, name: str, calls: int, rounds: int, threads: dict[str, str]
) -> dict[str, float]:
    """Return the seconds of one call, by way of calling."""
    site, (package, _) = lowered(name), by_hand(name)
    reports: list[dict[str, float]] = []

    def once() -> None:
        reports.append(bench.script("call.py", site, name, package, str(calls), str(rounds), environment=threads))

    bench.benchmark.pedantic(once, rounds=1)
    return reports[0]
