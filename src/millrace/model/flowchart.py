"""A topology as a picture: its components and streams as a Mermaid flowchart, or as plain data."""

from __future__ import annotations

from typing import Any

from millrace.api.tuple import DEAD_LETTERS, DEFAULT_STREAM
from millrace.model.graph import ComponentDef, Input, TopologyGraph

# Mermaid reads these characters as syntax, even inside quotes.
_ESCAPES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "\n": " "})
_BREAK = "<br/>"


def mermaid(graph: TopologyGraph) -> str:
    """The topology as a Mermaid flowchart: spouts are rounded, sinks are drawn as stores, edges show stream and grouping."""
    ids = {component.name: f"c{number}" for number, component in enumerate(graph.components)}
    lines = ["flowchart LR"]
    lines += [f"    {ids[component.name]}{_node(component)}" for component in graph.components]
    lines += [f"    {ids[source.source]} -->|\"{_edge(source)}\"| {ids[component.name]}"
              for component in graph.components for source in component.inputs]
    return "\n".join(lines)


def graph_as_json(graph: TopologyGraph) -> dict[str, Any]:
    """The facts of the flowchart as plain data."""
    return {
        "name": graph.name,
        "components": [{"name": component.name, "kind": component.kind, "tasks": component.par, "code": component.code,
                        "stateful": component.stateful,
                        "streams": {stream.name: list(stream.fields) for stream in component.outputs
                                    if stream.name != DEAD_LETTERS}}
                       for component in graph.components],
        "edges": [{"from": source.source, "stream": source.stream, "to": component.name, "grouping": repr(source.grouping)}
                  for component in graph.components for source in component.inputs],
        "mermaid": mermaid(graph),
    }


def _node(component: ComponentDef) -> str:
    kept = ", state" if component.stateful else ""
    tasks = f"{component.par} task{'' if component.par == 1 else 's'}"
    label = f"{component.name.translate(_ESCAPES)}{_BREAK}{tasks}{kept}"
    if component.kind == "spout":
        return f'(["{label}"])'
    return f'[("{label}")]' if _is_sink(component) else f'["{label}"]'


def _is_sink(component: ComponentDef) -> bool:
    return component.commits or all(stream.name == DEAD_LETTERS for stream in component.outputs)


def _edge(source: Input) -> str:
    stream = "" if source.stream == DEFAULT_STREAM else f"{source.stream}: "
    return f"{stream}{source.grouping!r}".translate(_ESCAPES)
