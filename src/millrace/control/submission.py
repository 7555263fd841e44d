"""Checks of a submitted topology: its settings, its guarantee, and the checkpoints of earlier runs to resume from."""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime
from typing import Literal

from millrace.api.tuple import DEAD_LETTERS
from millrace.config import ACKERS, AT_LEAST_ONCE, EXACTLY_ONCE, GUARANTEE, SETTINGS, WORKERS
from millrace.control.backup_placement import backup_shape
from millrace.errors import TopologyError
from millrace.model.graph import ComponentDef, TopologyGraph
from millrace.model.plan import initial_key_groups, rescaled_key_groups
from millrace.state.checkpoint import Manifest, base_wave

# True: resume from the checkpoint, which must exist. False: start fresh. None: refuse if there is a checkpoint. "auto": resume
# if there is a checkpoint, otherwise start; the choice of a supervisor, which restarts with the same command whatever happened.
# "older": resume the run that a fresh one had begun to replace.
Resume = bool | Literal["auto", "older"] | None
AUTO: Literal["auto"] = "auto"
OLDER: Literal["older"] = "older"


def check_not_running(name: str, running: Container[str]) -> None:
    """Raise `TopologyError` if a topology of that name is running."""
    if name in running:
        raise TopologyError(f"a topology named {name!r} is running already: kill it first, or give this one another name")


def check_settings(graph: TopologyGraph) -> None:
    """Raise `TopologyError` for an invalid value here rather than in every worker at once."""
    for conf in (graph.config, *(component.config for component in graph.components)):
        for setting in SETTINGS:
            setting.of(conf)


def check_guarantee(graph: TopologyGraph) -> None:
    """Raise `TopologyError` for a guarantee that the topology's spouts cannot keep."""
    backup_shape(graph)
    if graph.exactly_once:
        stuck = [spout.name for spout in graph.spouts if not spout.movable]
        if stuck:
            why, instead = f"asks for {EXACTLY_ONCE}", f"set {GUARANTEE.key} to {AT_LEAST_ONCE}"
            if graph.batched:
                why, instead = f"runs in batches, which is always {EXACTLY_ONCE}", "run it on the resident engine"
            raise TopologyError(f"{graph.name!r} {why}, and {', '.join(stuck)} cannot be read again from a position: derive it "
                                f"from ReplayableSpout (as GeneratorSpout, FileSpout and RedisLogSpout are), or {instead}")


def weak_points(graph: TopologyGraph) -> list[str]:
    """Warnings about effects that the guarantee does not cover."""
    warnings = []
    if graph.exactly_once:
        writing = [bolt.name for bolt in graph.bolts if _acts_outside(bolt)]
        if writing:
            warnings.append(f"{EXACTLY_ONCE} does not cover writes of {', '.join(writing)} to other systems: a failure repeats "
                            "them. Use a TwoPhaseSink")
    elif graph.waves and GUARANTEE.of(graph.config) == AT_LEAST_ONCE:
        stuck = [spout.name for spout in graph.spouts if not spout.movable]
        if stuck:
            warnings.append(f"{', '.join(stuck)} cannot be read again: state lost with a worker is restored as of the last "
                            "wave, without the tuples that came after it")
    return warnings


def _acts_outside(bolt: ComponentDef) -> bool:
    """True for a bolt that emits nothing but dead letters and keeps no state: its purpose must be a side effect. Nothing is
    known about other bolts, and most have none. Rows that a sink keeps in its snapshot, as for DataFrames and taps, are
    covered."""
    return all(stream.name == DEAD_LETTERS for stream in bolt.outputs) and not bolt.stateful and not bolt.commits


def ackers_for(graph: TopologyGraph, workers: int) -> int:
    """Number of acker tasks: as configured, or one for each worker that the topology can use; none without tracking."""
    if GUARANTEE.of(graph.config) != AT_LEAST_ONCE:
        return 0
    configured, most = ACKERS.of(graph.config), WORKERS.of(graph.config)
    used = min(workers, sum(graph.parallelism.values()), workers if most is None else int(most))
    return used if configured is None else int(configured)


def chosen(resume: Resume, manifest: Manifest | None) -> Resume:
    """The choice that "auto" stands for; other choices as they are. A fresh epoch that has committed no wave is nothing to
    resume from."""
    if resume == AUTO:
        return True if manifest is not None and manifest.wave > 0 else None
    return resume


def check_choice(resume: Resume, manifest: Manifest | None, store: str) -> None:
    """Raise `TopologyError` if there is a checkpoint to resume from and the user chose neither --resume nor --fresh. A fresh
    epoch that has committed no wave is nothing to resume from."""
    if resume is None and manifest is not None and manifest.wave > 0:
        raise choice_required(f"{store} has checkpoints of {manifest.topology!r}, the last of "
                              f"{_which(manifest)}{when(manifest.at)}")


def check_begun(resume: Resume, manifest: Manifest | None, at: float, store: str) -> None:
    """Raise `TopologyError` if a fresh run was begun and stopped before its first commit, and the user did not choose one of
    the two runs. `at`: when it was begun. `manifest`: the last of the run that it was to replace."""
    if manifest is None or resume is False or resume == OLDER:
        return
    raise TopologyError(f"{manifest.topology!r} was started with --fresh{when(at, 'at')}, and stopped before that run had "
                        f"committed anything; {store} still has the run before it, up to {_which(manifest)}"
                        f"{when(manifest.at)}. Choose --resume older (resume={OLDER!r}) to continue with that one, or --fresh "
                        "(resume=False) to start over again")


def check_older(manifest: Manifest | None, store: str) -> None:
    """Raise `TopologyError` for the choice "older" if no fresh run has begun to replace another. `manifest`: the last one."""
    if manifest is not None:
        raise TopologyError(f"{manifest.topology!r} has no older run to go back to: its last --fresh run has committed since, "
                            f"or there was none. {store} has its last run, up to {_which(manifest)}{when(manifest.at)}. Choose "
                            "--resume (resume=True) to continue that one, or --fresh (resume=False) to start over")


def choice_required(remains: str) -> TopologyError:
    """The error that asks for --resume or --fresh. `remains`: a sentence on the data that an earlier run has left, and
    its place."""
    return TopologyError(f"{remains}. Choose --resume (resume=True) to continue from there, or --fresh (resume=False) to start "
                         "over; the data of the old run is deleted once the new run has committed its own")


def when(at: float, verb: str = "made") -> str:
    """The time as part of a sentence; empty if it is not known."""
    return f", {verb} {datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}" if at else ""


def _which(manifest: Manifest) -> str:
    if not manifest.of_batches:
        return f"wave {manifest.wave}"
    return f"batch {manifest.wave - base_wave(manifest.offsets) - 1} (wave {manifest.wave})"


def as_scaled(graph: TopologyGraph, manifest: Manifest) -> TopologyGraph:
    """The graph with the numbers of tasks that the checkpoint's run was scaled to. Components whose number the user has chosen
    for this run, or has changed in the declaration since, keep that, and so do those that cannot be scaled."""
    return graph.with_par({component.name: manifest.parallelism[component.name] for component in graph.components
                           if (component.kind == "bolt" or component.splits or component.divided_by_source
                                or (component.dataframe and graph.batched))
                           and not component.chosen and not component.own_state and component.name in manifest.parallelism
                           and manifest.declared.get(component.name) == component.declared})


def scaled_note(graph: TopologyGraph) -> str:
    """A message about the components that a resumed topology has other numbers of tasks of than declared; empty if there are
    none."""
    changed = [f"{component.name} x {component.par}" for component in graph.components
               if not component.chosen and component.declared not in (0, component.par)]
    return f"resumes with {', '.join(changed)}, as it was scaled" if changed else ""


def owners_in(manifest: Manifest, graph: TopologyGraph) -> dict[str, tuple[int, ...]]:
    """Owners of the key groups of each keyed component, and of the splits of each spout that has some: the previous owners,
    redistributed if the parallelism changed."""
    return {component.name: _owners(manifest, component, groups) for component in graph.components
            if (groups := graph.groups_of(component))}


def _owners(manifest: Manifest, component: ComponentDef, groups: int) -> tuple[int, ...]:
    before = manifest.parallelism[component.name]
    owners = list(manifest.owners.get(component.name) or initial_key_groups(groups, before))  # also of groups without state
    for record in manifest.records:
        if record.component == component.name:
            for group in (*record.chains, *record.splits):
                owners[group] = record.index
    # The run may have ended within a change of parallelism, when some tasks owned nothing yet, or nothing any longer.
    whole = component.par == before and set(owners) == set(range(component.par))
    return tuple(owners) if whole else rescaled_key_groups(owners, component.par)
