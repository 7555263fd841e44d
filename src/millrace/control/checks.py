"""What a topology asks for, looked at before anything of it runs."""

from __future__ import annotations

from collections.abc import Container

from millrace.api.tuple import DEAD_LETTERS
from millrace.config import ACKERS, AT_LEAST_ONCE, EXACTLY_ONCE, GUARANTEE, SETTINGS
from millrace.control.backups import backup_shape
from millrace.errors import TopologyError
from millrace.model.graph import ComponentDef, TopologyGraph


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
