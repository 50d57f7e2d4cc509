"""The origin of a node: its module's path and the model's source line."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path, PurePath

import torch
from torch.fx import Node

from hatch_lower.canonical import sha256_file
from hatch_lower.exir.graph.surgery import oldest_ancestor
from hatch_lower.format.debug_map import MethodDebug, Origin

OPERATOR = re.compile(r"\w+\.\w+\.\w+")

FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+)', re.MULTILINE)


class SourceRoots:
    """Turns the absolute paths of stack traces into paths below the roots, or site-packages."""

    def __init__(self, roots: Iterable[Path] = ()) -> None:
        standard = Path(sysconfig.get_path("stdlib"))
        installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
        known = [*roots, *installed, standard]
        listed = {root.absolute() for root in known} | {root.resolve() for root in known}
        self._roots = sorted(listed, key=lambda root: (-len(root.parts), root))
        self._known: dict[str, str] = {}  # path in a trace → path below the roots: few files, many frames
        self._standard = {standard.absolute(), standard.resolve()}
        self._machinery = (Path(torch.__file__).parent, Path(__file__).parents[2])

    def source(self, stack_trace: str | None) -> str:
        """Return the innermost frame that is neither torch's nor Python's own, as `digits/model.py:31`, or ""."""
        for frame in reversed(list(FRAME.finditer(stack_trace or ""))):
            name = frame["path"]
            if name not in self._known:
                self._known[name] = self._relative(PurePath(name))
            if path := self._known[name]:
                return f"{path}:{frame['line']}"
        return ""

    def digests(self, methods: Iterable[MethodDebug]) -> dict[str, str]:
        sourced = {origin.source for method in methods for origin in method.handles.values() if origin.source}
        named = {source.rpartition(":")[0] for source in sourced}
        found = {name: Path(path) for path, name in self._known.items() if name in named and Path(path).is_file()}
        return {name: sha256_file(path) for name, path in sorted(found.items())}

    def origin(self, node: Node, op: str) -> Origin:
        # `op` is used if the node's exported operator is unknown
        return Origin(exported_op(node) or op, module_path(node), self.source(node.meta.get("stack_trace")))

    def _relative(self, path: PurePath) -> str:
        # empty for torch, this package, the standard library and generated code; a file outside of all roots keeps only
        # its name, as the folder would reveal the machine
        relative_torch = not path.is_absolute() and path.parts[0] == "torch"
        if (
            path.name.startswith("<")
            or relative_torch
            or any(path.is_relative_to(folder) for folder in self._machinery)
        ):
            return ""
        for root in self._roots:
            if path.is_relative_to(root):
                return "" if root in self._standard else path.relative_to(root).as_posix()
        return path.name if path.is_absolute() else path.as_posix()


def module_path(node: Node) -> str:
    paths = [entry[0] for entry in (node.meta.get("nn_module_stack") or {}).values()]
    return next((path for path in reversed(paths) if not path.startswith("_empty_nn_module_stack")), "")


def exported_op(node: Node) -> str:
    oldest = oldest_ancestor(node)
    return oldest.target if oldest is not None and OPERATOR.fullmatch(oldest.target) else ""
