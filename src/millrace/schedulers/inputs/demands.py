"""Demands that components declare: the CPU and memory of their tasks, until these are measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from millrace.config import COMPONENT_CPU, COMPONENT_MEMORY
from millrace.model.graph import TopologyGraph


class DeclaredNeeds(NamedTuple):
    """MHz and MB of each task, in the order of the graphs' tasks."""

    cpu: list[float]
    memory: list[float]


def demands(graphs: Sequence[TopologyGraph], core_mhz: float, percent: float = 0.0, megabytes: float = 0.0) -> DeclaredNeeds:
    """The demands that the graphs declare for their tasks. `core_mhz`: of a core. `percent`, `megabytes`: of tasks that declare
    nothing."""
    result = DeclaredNeeds([], [])
    for graph in graphs:
        for config, count in _configs(graph):
            cpu, memory = COMPONENT_CPU.of(config), COMPONENT_MEMORY.of(config)
            result.cpu.extend([(percent if cpu is None else cpu) / 100 * core_mhz] * count)
            result.memory.extend([megabytes if memory is None else memory] * count)
    return result


def declares(graph: TopologyGraph) -> bool:
    """True if the topology, or a component of it, declares what its tasks need."""
    return any(setting.of(config) is not None for config, _ in _configs(graph) for setting in (COMPONENT_CPU, COMPONENT_MEMORY))


def _configs(graph: TopologyGraph) -> Iterator[tuple[Mapping[str, Any], int]]:
    """The settings of each component, and the number of its tasks, in the order of the graph's tasks."""
    for component in graph.components:
        yield {**graph.config, **component.config}, component.par
    yield graph.config, graph.ackers
