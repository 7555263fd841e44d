"""What a topology asks for, looked at before anything of it runs."""

from __future__ import annotations

from millrace.config import ACKERS, AT_LEAST_ONCE, EXACTLY_ONCE, GUARANTEE, SETTINGS
from millrace.control.backups import backup_shape
from millrace.errors import TopologyError
from millrace.model.graph import TopologyGraph


def check_settings(graph: TopologyGraph) -> None:
    """`TopologyError` for a value that a worker would choke on: better here than in every worker at once."""
    for conf in (graph.config, *(component.config for component in graph.components)):
        for setting in SETTINGS:
            setting.of(conf)


def check_guarantee(graph: TopologyGraph) -> None:
    """`TopologyError` for a guarantee that the topology's spouts cannot keep."""
    backup_shape(graph)
    if graph.batched and not graph.exactly_once:
        raise TopologyError(f"{graph.name!r} asks for {GUARANTEE.of(graph.config)}, and a topology that runs in batches is "
                            f"always {EXACTLY_ONCE}: leave {GUARANTEE.key} out")
    if graph.exactly_once:
        stuck = [spout.name for spout in graph.spouts if not spout.movable]
        if stuck:
            raise TopologyError(f"{graph.name!r} asks for {EXACTLY_ONCE}, and {', '.join(stuck)} cannot be read again from a "
                                "position: derive it from ReplayableSpout (GeneratorSpout, FileSpout and RedisLogSpout are), "
                                f"or set {GUARANTEE.key} to {AT_LEAST_ONCE}")


def weak_points(graph: TopologyGraph) -> list[str]:
    """What the guarantee does not cover, for people to know."""
    found = []
    if graph.exactly_once:
        plain = [bolt.name for bolt in graph.bolts if not graph.downstream(bolt.name) and not bolt.commits]
        if plain:
            found.append(f"not part of the two-phase commit: {', '.join(plain)}; what they write outside, if anything, may be "
                         "written again after a failure")
    elif graph.waves and GUARANTEE.of(graph.config) == AT_LEAST_ONCE:
        stuck = [spout.name for spout in graph.spouts if not spout.movable]
        if stuck:
            found.append(f"{', '.join(stuck)} cannot be read again: state that is lost with a worker goes back to the last "
                         "wave, and what came since is missing from it")
    return found


def ackers_for(graph: TopologyGraph, workers: int) -> int:
    """How many acker tasks a topology gets: as many as it says, or one for each worker; none without tracking."""
    if GUARANTEE.of(graph.config) != AT_LEAST_ONCE:
        return 0
    asked = ACKERS.of(graph.config)
    return workers if asked is None else int(asked)
