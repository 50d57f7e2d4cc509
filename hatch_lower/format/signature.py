"""A method's signature in words, for people who have the wheel but not the source."""

from __future__ import annotations

from collections.abc import Iterator

from hatch_lower.format.expression import symbols_in
from hatch_lower.format.inputs import Input, Symbol, SymbolInput, TensorInput, input_text
from hatch_lower.format.plan import MethodPlan
from hatch_lower.format.tree import leaf_paths, tree_text


def signature_text(name: str, method: MethodPlan) -> str:
    """Return `embed(image: float32[batch, 1, 8, 8], *, scale: the value 2); batch from 1 to 1024`."""
    leaves = (input_text(each, method.symbols) for each in method.inputs)
    texts = []
    for parameter in method.parameters:
        if parameter.kind == "keyword" and "*" not in texts:
            texts.append("*")
        texts.append(f"{parameter.name}: {tree_text(parameter.tree, leaves.__next__)}")
    used = frozenset[str]().union(*(_symbols_of(each) for each in method.inputs))
    ranges = [_range_text(method.symbols[symbol]) for symbol in sorted(used)]
    return "; ".join([f"{name}({', '.join(texts)})", *ranges])


def input_texts(method: MethodPlan) -> dict[str, str]:
    """Return a method's inputs in words, by the paths that lead to them: `image`, `boxes[0]`."""
    paths = [path for parameter in method.parameters for path in leaf_paths(parameter.tree, parameter.name)]
    return {path: input_text(value, method.symbols) for path, value in zip(paths, method.inputs, strict=True)}


def _symbols_of(entry: Input) -> Iterator[str]:
    if isinstance(entry, TensorInput):
        for size in entry.shape:
            yield from symbols_in(size)
    elif isinstance(entry, SymbolInput):
        yield from symbols_in(entry.expression)


def _range_text(symbol: Symbol) -> str:
    end = f" to {symbol.maximum}" if symbol.maximum is not None else ""
    return f"{symbol.label} from {symbol.minimum}{end}"
