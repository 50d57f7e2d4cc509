"""C++ that notes when each kernel begins, in the code that inductor wrote around a partition's kernels.

In front of each call of a kernel, inductor writes a comment with the kernel's name in the debug map.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hatch_lower.backends.aoti.record import Generated
from hatch_lower.errors import BackendError

KERNEL = re.compile(r"^( *)// \[Provenance debug handles\] (\S+)$", re.MULTILINE)
CALL = re.compile(r"^void AOTInductorModel::run_impl\([^{]*\{\n", re.MULTILINE)
# The interface of a library for the run half: the names of its kernels, a function that switches the notes on, and a
# function that copies the notes (a kernel's number or -1 for the end of a run, and nanoseconds) and clears them.
SUPPORT = r"""
#include <chrono>
#include <cstdint>
#include <vector>

namespace {{
bool hatch_lower_notes = false;
std::vector<int64_t> hatch_lower_marks;

inline void hatch_lower_mark(int64_t kernel) {{
    if (!hatch_lower_notes) return;
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    hatch_lower_marks.push_back(kernel);
    hatch_lower_marks.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}}

struct HatchLowerRun {{
    ~HatchLowerRun() {{ hatch_lower_mark(-1); }}
}};
}}

extern "C" __attribute__((visibility("default"))) const char* hatch_lower_kernels() {{
    return "{names}";
}}

extern "C" __attribute__((visibility("default"))) void hatch_lower_note(int32_t notes) {{
    hatch_lower_notes = notes != 0;
}}

extern "C" __attribute__((visibility("default"))) int64_t hatch_lower_take(int64_t* target, int64_t capacity) {{
    int64_t count = static_cast<int64_t>(hatch_lower_marks.size());
    for (int64_t index = 0; index < count && index < capacity; index++) target[index] = hatch_lower_marks[index];
    hatch_lower_marks.clear();
    return count;
}}

"""


def with_timers(generated: Generated) -> Generated:
    names: list[str] = []

    def mark(kernel: re.Match[str]) -> str:
        names.append(kernel[2])
        return f"{kernel[0]}\n{kernel[1]}hatch_lower_mark({len(names) - 1});"

    marked = KERNEL.sub(mark, generated.wrapper)
    call = CALL.search(marked)
    if call is None or set(names) != set(generated.origins):
        raise BackendError(
            "the code that inductor generates does not say where its kernels are called",
            found=f"{len(set(names))} calls of {len(generated.origins)} kernels",
            hint="leave out the backend's option `timers`",
        )
    support = SUPPORT.format(names="\\n".join(names))
    text = f"{marked[: call.end()]}    HatchLowerRun hatch_lower_run;\n{marked[call.end() :]}"
    return replace(generated, wrapper=f"{support}{text}")
