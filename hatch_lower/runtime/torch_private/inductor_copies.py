"""Copies of constants, which inductor must not replace by the constants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx import Graph


@contextmanager
def copies_kept() -> Iterator[None]:
    """Patch inductor so that copies of constants stay copies.

    Inductor removes a copy unless the copy would make an output the same memory as an input. Inductor does not know
    that constants are memory of the program, and that a constant may be state: a copy made before a change of the state
    would have the new contents.
    """
    from torch._inductor.fx_passes import post_grad

    passes: Any = post_grad
    remove = passes.remove_noop_ops

    def remove_but_keep(graph: Graph) -> None:
        # inductor compares a copy and its source with the outputs
        constants = list(graph.find_nodes(op="get_attr"))
        copies = [user for node in constants for user in node.users if user.target in passes.noop_registry]
        output = graph.output_node()
        results: Any = output.args[0]
        if not constants or not isinstance(results, (list, tuple)):
            remove(graph)
            return
        output.args = ((*results, *constants, *copies),)
        remove(graph)
        kept: Any = output.args[0]
        output.args = (type(results)(kept[: len(results)]),)

    passes.remove_noop_ops = remove_but_keep
    try:
        yield
    finally:
        passes.remove_noop_ops = remove
