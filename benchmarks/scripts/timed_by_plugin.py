"""A test for the plugin of pytest: times calls through pytest-benchmark, and the same calls by `timeit`."""

from __future__ import annotations

import statistics
import timeit
from typing import Any


def test_call(benchmark: Any, lowered_model: Any, example_inputs: Any) -> None:
    names = {"call": lowered_model, "args": example_inputs.args, "kwargs": example_inputs.kwargs}
    timer = timeit.Timer("call(*args, **kwargs)", globals=names)
    timer.timeit(10_000)
    before = timer.repeat(10_000, 1)
    benchmark(lowered_model, *example_inputs.args, **example_inputs.kwargs)
    iterations = benchmark.stats.iterations
    after = [seconds / iterations for seconds in timer.repeat(10_000, iterations)]
    benchmark.extra_info["timeit"] = {
        "min": min(*before, *after),
        "median": statistics.fmean(map(statistics.median, (before, after))),
    }
