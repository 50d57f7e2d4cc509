"""Inductor's Python half: a partition in, C++ source out, with the step that would run the compiler replaced.

Inductor's checks (an index out of range) throw where they are, and an exception that leaves an OpenMP region ends the
process: errors in parallel loops are kept until the loop's region ends.

The option `timers` notes when each kernel begins. In front of each call of a kernel, inductor writes a comment with the
kernel's name in the debug map.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule

from hatch_lower.backends.aoti.prepare import ORIGIN, AotiCopy
from hatch_lower.errors import BackendError
from hatch_lower.exir.graph.tensors import span_length
from hatch_lower.runtime.torch_private import inductor

KEEPER = """\
#include <atomic>
#include <exception>
namespace {
struct FirstError {
    std::atomic_flag found = ATOMIC_FLAG_INIT;
    std::exception_ptr error;
    void keep() noexcept { if (!found.test_and_set()) error = std::current_exception(); }
    void raise() const { if (error) std::rethrow_exception(error); }
};
}
"""
FUNCTION = 'extern "C"'
REGION = re.compile(r"#pragma omp (?:(single)|for(?: simd simdlen\(\d+\))?(?: collapse\((\d+)\))?)\s*$")
RAISES = re.compile(r"\bAOTI_TORCH_CHECK\(|\bthrow\b")


def contain_errors(kernels: str) -> str:
    head, *functions = re.split(f"^(?={FUNCTION})", kernels, flags=re.MULTILINE)
    changed = [guard(code) if "#pragma omp" in code and RAISES.search(code) else code for code in functions]
    return kernels if changed == functions else "".join([head, KEEPER, *changed])


def guard(function: str) -> str:
    """Return a function whose shared loops keep their first error, and which throws the error at its end."""
    lines = function.splitlines()
    for number, line in enumerate(lines):
        pragma = REGION.match(line.strip())
        if pragma is not None:
            # after the pragma, each loop has a line for its head and a line for its brace
            begin = number + (1 if pragma[1] else 2 * int(pragma[2] or 1))
            if lines[begin].strip() != "{":
                raise another_form(lines[begin])
            indent = lines[begin].removesuffix("{")
            end = find_line(lines, f"{indent}}}", begin)
            if any(map(RAISES.search, lines[begin:end])):
                lines[begin] += " try {"
                lines[end] += " catch (...) { first_error.keep(); } }"
    begin, end = find_line(lines, "{", 0), find_line(lines, "}", 0)
    lines[begin] += " FirstError first_error;"
    lines[end] = "    first_error.raise();\n}"
    return "\n".join(lines) + "\n"


def find_line(lines: list[str], text: str, begin: int) -> int:
    try:
        return lines.index(text, begin)
    except ValueError:
        raise another_form(text) from None


def another_form(line: str) -> BackendError:
    return BackendError(
        "inductor's code has an unknown form, and an error in a parallel loop could end the process",
        found=line.strip(),
        hint="use the version of torch that this version of hatch-lower is made for",
    )


CONSTANT = re.compile(r"[cp]\d+")
# the end of a Python function's text, which inductor writes into a message where no operator stands behind a call
ADDRESS = re.compile(r" at 0x[0-9a-f]+>")
# a call of libtorch whose error inductor forgets to look at: that of a scatter that reduces
UNCHECKED = re.compile(r"^( *)(aoti_torch_\w+_out\(.*\));$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GeneratedCode:
    """The code that inductor wrote for a partition."""

    # C++ that owns the memory and calls the kernels
    wrapper: str
    # C++ of the kernels; empty if every operation is a call of libtorch
    kernels: str
    # the constants that the code knows, by their names in `AotiCopy.attributes`; equal ones are known once
    bound: frozenset[str]
    # kernel or libtorch call to the indices of its operations
    origins: Mapping[str, tuple[int, ...]]
    # contents of the library's read-only symbols that the wrapper refers to
    binaries: Mapping[str, bytes] = field(default_factory=dict)


def generate(copied: AotiCopy) -> GeneratedCode:
    with code_recorded() as records, torch.no_grad():
        try:
            inductor.compile_graph(GraphModule(copied.attributes, copied.graph), copied.fakes)
        except Exception as error:
            if (ours := find_backend_error(error)) is not None:
                raise ours from None
            message = "\n".join(str(error).strip().splitlines()[:12])
            raise refusal("inductor could not lower a partition", f"{type(error).__name__}: {message}") from error
    if any(isinstance(size, torch.SymInt) and size.node.expr.is_number for fake in copied.fakes for size in fake.shape):
        raise BackendError(
            "inductor compiled a partition of dynamic sizes for the sizes of its example only",
            hint="leave the operation out with the backend's option `exclude`, or export it with fixed sizes",
        )
    if len(records) != 1:
        raise refusal(
            "inductor generated no code, or several pieces of code, for a partition", f"{len(records)} pieces"
        )
    return records[0]


def refusal(problem: str, found: str) -> BackendError:
    return BackendError(problem, found=found, hint="leave the operation out with the backend's option `exclude`")


def find_backend_error(error: BaseException | None) -> BackendError | None:
    # inductor wraps our own errors into its own
    while error is not None and not isinstance(error, BackendError):
        error = error.__cause__ or error.__context__
    return error


@contextmanager
def code_recorded() -> Iterator[list[GeneratedCode]]:
    """Collect the arguments of inductor's C++ compile step instead of compiling, and prevent copies of constants."""
    records: list[GeneratedCode] = []

    def record(graph: object, wrapper: str, kernels: str, extern: str | None, **_: object) -> str:
        refuse_extern(extern)
        wrapper = UNCHECKED.sub(r"\1AOTI_TORCH_ERROR_CODE_CHECK(\2);", ADDRESS.sub(">", wrapper))
        records.append(GeneratedCode(wrapper, contain_errors(kernels), bound_constants(graph), read_origins(graph)))
        return "recorded"

    with inductor.compiling_with(record, reserve_alike):
        yield records


def reserve_alike(constant: torch.Tensor) -> torch.Tensor:
    # inductor copies every constant, which would fill memory with stand-ins
    return constant.new_empty((span_length(constant),)).as_strided(constant.size(), constant.stride())


def refuse_extern(extern: str | None) -> None:
    # operations that native code cannot call alone need a second file, and Python at run time
    if not extern:
        return
    names = sorted(set(re.findall(r'"target":\s*"([^"]+)"', extern)))
    found = ", ".join(names) or "unnamed operations"
    raise refusal("inductor has no native call for an operation of a partition", found)


def bound_constants(graph: Any) -> frozenset[str]:
    for name in graph.constants:
        if not CONSTANT.fullmatch(name):
            raise BackendError(
                "inductor made a constant of its own, which a weight-free library cannot hold",
                found=f"`{name}`, {graph.constants[name].dtype}, shape {tuple(graph.constants[name].shape)}",
                hint="leave the operation that makes the constant out with the backend's option `exclude`",
            )
    return frozenset(graph.constants)


def read_origins(graph: Any) -> dict[str, tuple[int, ...]]:
    # inductor's own provenance; names end in the number of the call in the generated code (`cpp_fused_relu_0:2`)
    origins = {
        node.name: node.meta["custom"][ORIGIN]
        for node in graph.module.graph.nodes
        if isinstance(node.meta.get("custom"), dict) and ORIGIN in node.meta["custom"]
    }
    return {
        kernel: tuple(sorted({origins[name] for name in names if name in origins}))
        for kernel, names in inductor.nodes_of_kernels().items()
    }


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


def with_kernel_timers(generated: GeneratedCode) -> GeneratedCode:
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
