"""Errors in loops that OpenMP shares out among threads: kept until the loop's region ends, then thrown.

Inductor's checks (an index out of range) throw where they are, and an exception that leaves an OpenMP region ends the
process.
"""

from __future__ import annotations

import re

from hatch_lower.errors import BackendError

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
