"""A topology that runs in batches goes on as it was: with the tasks that it was scaled to, and the key groups that each had."""

from __future__ import annotations

from dataclasses import replace

from millrace.model.graph import ComponentDef, TopologyGraph
from millrace.model.plan import initial_key_groups, rescaled_key_groups
from millrace.state.checkpoint import Manifest


def as_scaled(graph: TopologyGraph, manifest: Manifest, chosen: frozenset[str]) -> tuple[TopologyGraph, str]:
    """The graph with as many tasks as the checkpoint has, and what is to be said of that. Not of components in `chosen`, nor
    of those that cannot be scaled while they run: there the number was changed in the declaration."""
    scaled = {component.name: manifest.parallelism[component.name] for component in graph.bolts
              if component.name in manifest.parallelism and component.name not in chosen and not component.own_state}
    changed = [f"{component.name} x {scaled[component.name]}" for component in graph.bolts
               if scaled.get(component.name, component.par) != component.par]
    if not changed:
        return graph, ""
    components = tuple(replace(component, par=scaled.get(component.name, component.par)) for component in graph.components)
    return replace(graph, components=components), f"goes on with {', '.join(changed)}, as it was scaled"


def owners_in(manifest: Manifest, graph: TopologyGraph) -> dict[str, tuple[int, ...]]:
    """Who owns the key groups of each keyed component: who had them, as far as there are as many tasks now."""
    return {component.name: _owners(manifest, component) for component in graph.bolts if component.keyed}


def _owners(manifest: Manifest, component: ComponentDef) -> tuple[int, ...]:
    before = manifest.parallelism[component.name]
    owners = list(initial_key_groups(manifest.key_groups, before))  # of groups that nothing was kept in yet
    for record in manifest.records:
        if record.component == component.name:
            for group in record.chains:
                owners[group] = record.index
    return tuple(owners) if component.par == before else rescaled_key_groups(owners, component.par)
