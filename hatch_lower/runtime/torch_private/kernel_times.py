"""Times of a kernel's configurations on a GPU, taken by inductor's own code for choosing a configuration.

The code defines the kernels of a partition, makes random inputs in the sizes of the example, and calls each kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median
from typing import Any, TypeAlias
from unittest.mock import patch

from hatch_lower.runtime.torch_private.gpu_stand_ins import answer_with, config_values, kernel_digest

REPETITIONS = 5  # of inductor's benchmark, which itself is the median of many launches

# a kernel, a configuration and the arguments of a launch; returns milliseconds, infinite for a launch that fails
Measure: TypeAlias = Callable[[Any, Any, tuple[Any, ...]], float]
# by digest, the configurations that this GPU can run, with nanoseconds
KernelTimes: TypeAlias = list[tuple[str, list[tuple[dict[str, int], int]]]]
NANOSECONDS = 1e6  # of a millisecond


def time_kernels(code: str, capability: int, measure: Measure) -> KernelTimes:
    """Return the times of each kernel that has several configurations; run outside of `gpu_stand_ins`."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    found: KernelTimes = []

    def run(kernel: Any, *args: Any, **_: object) -> None:
        if len(kernel.configs) > 1:
            # the code names the GPU of the table; a launch here needs code for the GPU of this machine
            properties = kernel.device_props._replace(cc=capability, major=capability // 10)
            with patch.object(kernel, "device_props", properties):
                times = [(config_values(config), measure(kernel, config, args)) for config in kernel.configs]
            known = [(config, round(each * NANOSECONDS)) for config, each in times if math.isfinite(each)]
            found.append((kernel_digest(kernel), known))

    with patch.object(CachingAutotuner, "precompile", answer_with(None)), patch.object(CachingAutotuner, "run", run):
        exec(code, {})
    return found


def measure_on_gpu(kernel: Any, config: Any, args: tuple[Any, ...]) -> float:
    """Return the median time of a launch, measured with events of CUDA."""
    from torch._inductor.runtime.triton_compat import OutOfResources, PTXASError

    try:
        launcher = kernel._precompile_config(config).make_launcher()
    except (OutOfResources, PTXASError):
        return float("inf")
    return float(median(kernel.bench(launcher, *args) for _ in range(REPETITIONS)))
