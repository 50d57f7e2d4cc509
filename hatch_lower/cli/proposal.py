"""The backend that `hatch-lower init` proposes for a project's needs, with the reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from importlib.util import find_spec

from hatch_lower.backends.aoti.program import find_program
from hatch_lower.errors import BackendError, ConfigError
from hatch_lower.frozen import Frozen

# a need, and the reason for a backend that meets the need
NEEDS = {
    "torch-free": "models that it takes whole run without torch",
    "no-compiler": "a build needs no compiler",
    "native": "the wheel has machine code, and needs no library beside torch",
    "phone": "a phone runs the same file",
}


class Proposed(Frozen):
    backend: str
    module: str  # of the engine's library
    meets: frozenset[str]
    use: str  # the reason for another choice of this backend


# the backend that was the fastest for the most models comes first (docs/engines.md)
CANDIDATES = (
    Proposed("openvino", "openvino", frozenset(["torch-free", "no-compiler"]), "often the fastest"),
    Proposed("onnxruntime", "onnxruntime", frozenset(["torch-free", "no-compiler"]), "the smallest installation"),
    Proposed("executorch", "executorch", frozenset(["no-compiler", "phone"]), "a file that a phone runs, too"),
    Proposed("aoti", "torch", frozenset(["native"]), "machine code, with no library beside torch"),
)


class Proposal(Frozen):
    backend: str
    reasons: tuple[str, ...]
    others: tuple[Proposed, ...]


def propose(needs: Collection[str]) -> Proposal:
    """Return the first candidate that meets all needs; of candidates that meet the same, an installed one first."""
    fitting = [each for each in CANDIDATES if each.meets.issuperset(needs)]
    if not fitting:
        raise ConfigError(
            "no backend meets all needs of the project",
            where="`--need`",
            found="\n".join(f"`{need}`: {', '.join(map(quoted, meeting(need)))}" for need in sorted(needs)),
            hint="leave out a need, or write a recipe for each backend: a machine loads a recipe that runs there",
        )
    alike = [each for each in fitting if each.meets == fitting[0].meets]
    chosen = next((each for each in alike if is_installed(each)), alike[0])
    others = tuple(each for each in CANDIDATES if each.backend != chosen.backend)
    return Proposal(chosen.backend, tuple(reasons_for(chosen, alike)), others)


def reasons_for(chosen: Proposed, alike: Sequence[Proposed]) -> Iterator[str]:
    yield from (reason for need, reason in NEEDS.items() if need in chosen.meets)
    absent = [each for each in alike if not is_installed(each)]
    if is_installed(chosen) and absent:
        yield f"its library is installed here, and `{absent[0].backend}`'s is not"
    elif chosen.backend == "aoti" and not has_compiler():
        yield "a build needs g++ or clang++, and this machine has neither"
    elif chosen is CANDIDATES[0]:
        yield "of ten models in docs/engines.md, it is the fastest most often"


def has_compiler() -> bool:
    try:
        return bool(find_program())
    except BackendError:
        return False


def is_installed(candidate: Proposed) -> bool:
    return find_spec(candidate.module) is not None


def meeting(need: str) -> list[Proposed]:
    return [each for each in CANDIDATES if need in each.meets]


def quoted(candidate: Proposed) -> str:
    return f"`{candidate.backend}`"


def proposal_lines(proposal: Proposal) -> Iterator[str]:
    yield f"backend `{proposal.backend}`:"
    yield from (f"  {reason}" for reason in proposal.reasons)
    yield "other backends (`--backend`):"
    width = max(len(each.backend) for each in proposal.others) + 2
    yield from (f"  {quoted(each):{width}}  {each.use}" for each in proposal.others)
    yield "`hatch-lower tune --write` measures which backend is the fastest for your model"
