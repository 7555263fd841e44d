"""Checks of a submitted topology: its settings, its guarantee, and what an earlier run has left to resume from."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from datetime import datetime

from millrace.api.tuple import DEAD_LETTERS
from millrace.config import ACKERS, AT_LEAST_ONCE, EXACTLY_ONCE, GUARANTEE, SETTINGS
from millrace.control.backup_placement import backup_shape
from millrace.errors import TopologyError
from millrace.model.graph import ComponentDef, TopologyGraph
from millrace.model.plan import initial_key_groups, rescaled_key_groups
from millrace.state.checkpoint import Manifest


def check_not_running(name: str, running: Container[str]) -> None:
    """`TopologyError` if one of that name runs."""
    if name in running:
        raise TopologyError(f"a topology named {name!r} is running already: kill it first, or give this one another name")


def check_settings(graph: TopologyGraph) -> None:
    """`TopologyError` for a value that a worker would choke on: better here than in every worker at once."""
    for conf in (graph.config, *(component.config for component in graph.components)):
        for setting in SETTINGS:
            setting.of(conf)


def check_guarantee(graph: TopologyGraph) -> None:
    """`TopologyError` for a guarantee that the topology's spouts cannot keep."""
    backup_shape(graph)
    if graph.exactly_once:
        stuck = [spout.name for spout in graph.spouts if not spout.movable]
        if stuck:
            why, instead = f"asks for {EXACTLY_ONCE}", f"set {GUARANTEE.key} to {AT_LEAST_ONCE}"
            if graph.batched:
                why, instead = f"runs in batches, which is always {EXACTLY_ONCE}", "run it on the resident engine"
            raise TopologyError(f"{graph.name!r} {why}, and {', '.join(stuck)} cannot be read again from a position: derive it "
                                f"from ReplayableSpout (GeneratorSpout, FileSpout and RedisLogSpout are), or {instead}")


def weak_points(graph: TopologyGraph) -> list[str]:
    """What the guarantee does not cover, for people to know."""
    found = []
    if graph.exactly_once:
        writing = [bolt.name for bolt in graph.bolts if _acts_outside(bolt)]
        if writing:
            found.append(f"{EXACTLY_ONCE} does not cover what {', '.join(writing)} may write outside: after a failure it is "
                         "written again. A TwoPhaseSink is covered")
    elif graph.waves and GUARANTEE.of(graph.config) == AT_LEAST_ONCE:
        stuck = [spout.name for spout in graph.spouts if not spout.movable]
        if stuck:
            found.append(f"{', '.join(stuck)} cannot be read again: state that is lost with a worker goes back to the last "
                         "wave, and what came since is missing from it")
    return found


def _acts_outside(bolt: ComponentDef) -> bool:
    """One that emits nothing but dead letters and keeps no state is there for what it does outside. Of others nothing is known,
    and most do nothing there. What a sink keeps in its snapshot, as those for DataFrames and taps do, is covered."""
    return all(stream.name == DEAD_LETTERS for stream in bolt.outputs) and not bolt.stateful and not bolt.commits


def ackers_for(graph: TopologyGraph, workers: int) -> int:
    """How many acker tasks a topology gets: as many as it says, or one for each worker; none without tracking."""
    if GUARANTEE.of(graph.config) != AT_LEAST_ONCE:
        return 0
    asked = ACKERS.of(graph.config)
    return workers if asked is None else int(asked)


def check_choice(resume: bool | None, found: Manifest | None, store: str) -> None:
    """`TopologyError` if there is something to go on from, and nobody has said whether to. The manifest of an epoch that began
    at the beginning, before its first wave, is nothing to go on from."""
    if resume is None and found is not None and found.wave > 0:
        raise not_said(f"{store} has checkpoints of {found.topology!r}, the last of {_which(found)}{when(found.at)}")


def not_said(there: str) -> TopologyError:
    """`there`: what is there, and where. It is deleted by nobody who does not say so."""
    return TopologyError(f"{there}. Say what is to become of that: --resume (resume=True) goes on from there, --fresh "
                         "(resume=False) begins anew and deletes it once the new run has committed something of its own")


def when(at: float) -> str:
    """As a part of a sentence; nothing if it is not known."""
    return f", made {datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}" if at else ""


def _which(manifest: Manifest) -> str:
    if not manifest.of_batches:
        return f"wave {manifest.wave}"
    base = int(manifest.offsets.rpartition("-")[2])  # the wave after which its batches are counted
    return f"batch {manifest.wave - base - 1} (wave {manifest.wave})"


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
