"""The adapter that Model Explorer loads by the name of this module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_explorer import Adapter, AdapterMetadata, ModelExplorerGraphs
from model_explorer.graph_builder import Graph, GraphNode, GraphNodeStyle, IncomingEdge, KeyValue

from hatch_lower.cli.page.operations import model_explorer_graph, named_graphs
from hatch_lower.driver.contents import find_contents


class HatchLowerAdapter(Adapter):  # type: ignore[misc]
    """Shows the methods of the lowered models in a wheel, a graph for each recipe."""

    metadata = AdapterMetadata(
        id="hatch_lower",
        name="hatch-lower",
        description="Lowered models in a wheel that hatch-lower built",
        source_repo="",
        fileExts=["whl"],
    )

    def convert(self, model_path: str, settings: dict[str, object]) -> ModelExplorerGraphs:
        graphs = named_graphs(find_contents(Path(model_path)))
        return {"graphs": [graph_of(model_explorer_graph(graph)) for graph in graphs]}


def graph_of(graph: dict[str, Any]) -> Graph:
    return Graph(
        graph["id"], list(map(explorer_node, graph["nodes"])), groupNodeAttributes=graph["groupNodeAttributes"]
    )


def explorer_node(node: dict[str, Any]) -> GraphNode:
    return GraphNode(
        id=node["id"],
        label=node["label"],
        namespace=node["namespace"],
        attrs=[KeyValue(**pair) for pair in node["attrs"]],
        incomingEdges=[IncomingEdge(**edge) for edge in node.get("incomingEdges", ())],
        style=GraphNodeStyle(**node.get("style", {})),
    )
