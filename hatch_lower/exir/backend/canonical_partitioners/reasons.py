"""Why nodes were not taken: partitioners collect it, and `hatch-lower explain` shows it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from torch.fx import Node

from hatch_lower.exir.backend.canonical_partitioners.operators import operator_name

__all__ = ["WhyNoPartition", "WhyNoPartitionReporter"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason against one node, without a reference to its graph."""

    node: str
    operator: str
    reason: str


class WhyNoPartitionReporter:
    """Collects the reasons of one run of a partitioner; a node may have several."""

    def __init__(self) -> None:
        self._refusals: dict[Refusal, None] = {}

    def report_reject(self, node: Node, reason: str) -> None:
        """Add a reason why a node is not taken."""
        operator = operator_name(node.target) if node.op == "call_function" else node.op
        self._refusals[Refusal(node.name, operator, reason.strip())] = None

    def clear(self) -> None:
        """Forget all reasons."""
        self._refusals.clear()

    @property
    def reasons(self) -> dict[str, str]:
        """Node name to its reasons, as `PartitionResult.reasons` wants them."""
        found: dict[str, str] = {}
        for refusal in self._refusals:
            before = found.get(refusal.node)
            found[refusal.node] = refusal.reason if before is None else f"{before}; {refusal.reason}"
        return found

    def get_table_report(self) -> str:
        """Return all reasons as a table in text, in the order in which they were reported."""
        if not self._refusals:
            return "No node was rejected."
        rows = [("node", "operator", "reason"), *((each.node, each.operator, each.reason) for each in self._refusals)]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{row[0].ljust(widths[0])}  {row[1].ljust(widths[1])}  {row[2]}" for row in rows)


class WhyNoPartition:
    """Logs, where a partitioner refuses a node, why.

    Args:
        logger: gets each reason as a debug message.
        reporter: gets it too.
    """

    def __init__(self, logger: logging.Logger, reporter: WhyNoPartitionReporter | None = None) -> None:
        self.logger = logger
        self.reporter = reporter
        self.node: Node | None = None
        self.reason = ""

    def __call__(self, node: Node, reason: str) -> None:
        self.node = node
        self.reason = reason
        self.logger.debug("%s", str(self))
        if self.reporter is not None:
            self.reporter.report_reject(node, reason)

    def __str__(self) -> str:
        return f"WhyNoPartition: Node {self.node} was not partitioned because {self.reason}."
