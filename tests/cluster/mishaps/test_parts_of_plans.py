"""Workers know only their node's part of the plan: channels, ackers and fencing are those of the whole plan, and answers to a
worker that only a later plan tells of are not lost."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.control.assignment import SWITCH
from millrace.errors import TopologyError
from millrace.model.graph import ACKER, TaskId
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker.worker import Worker
from millrace.testing.local_cluster import LocalCluster
from support.cluster.cluster_runs import Late
from support.cluster.plain_parts import Numbers, Pass, Sink
from support.cluster.records import SEEN, forget

SLOTS = 8
CONFIG: dict[str, Any] = {"limit": 2000, "burst": 10, "topology.chunk.tuples": 10, "topology.message.timeout.secs": 5.0,
                          "topology.acker.executors": 2}


class Chain(Topology):
    numbers = Numbers.spec()
    first = Pass.spec(inputs=[numbers], par=2)
    second = Pass.spec(inputs=[first])
    sink = Sink.spec(inputs={second: Grouping.fields("n")}, par=2)


class Line(Topology):
    numbers = Numbers.spec()
    through = Pass.spec(inputs=[numbers])
    sink = Sink.spec(inputs=[through])


@pytest.fixture(autouse=True)
def fresh() -> None:
    forget()


def assert_wired_as_by_the_whole(cluster: LocalCluster, worker: Worker, seen: set[tuple[int, int]]) -> None:
    """`seen`: slot and generation of all workers so far."""
    whole = cluster.master.assignment()
    addresses = {address.slot: address for address in whole.workers}
    running = {(run.number, task.name): task.incarnation for run in worker.topologies.values() for task in run.tasks.values()}
    wanted = whole.tasks_at(worker.slot)
    assert running == {key: incarnation for key, incarnation in wanted.items() if key[1].component != ACKER}
    for plan in whole.topologies:
        run, places = worker.topologies.get(plan.number), dict(plan.places)
        for task in run.everyone() if run is not None else ():
            for channel in task.channels.values():
                place = places[channel.target_name]
                assert (channel.target_incarnation, channel.slot) == (
                    place.incarnation, place.slot if place.slot != worker.slot else None)
                assert channel.slot is None or channel.link is worker.links.to(channel.slot)
            near = {component.name for component, _ in plan.graph.downstream(task.name.component)}
            assert {name for name in run.retiring if name.component in near} == {
                move.task for move in plan.moves if move.retires and move.phase == SWITCH and move.task.component in near}
        if run is not None:
            assert run.tracker.acker_slots == [places[TaskId(ACKER, index)].slot for index in range(plan.graph.ackers)]
    assert {address.slot: address for address in worker.known.addresses}.items() <= addresses.items()
    for slot, generation in seen:
        gone = addresses[slot].generation != generation if slot in addresses else True
        assert worker.known.is_fenced(slot, generation) == worker.known.is_lost(slot, generation) == gone


@pytest.mark.parametrize("seed", range(8))
def test_workers_wire_their_tasks_as_by_the_whole_plan(seed: int) -> None:
    random, cluster = Random(seed), LocalCluster(SLOTS, SLOTS)
    for name in ("one", "two"):
        cluster.submit(Chain, name=name, config={**CONFIG, "limit": 400})
    seen = {(slot, worker.generation) for slot, worker in cluster.workers.items()}
    for _ in range(12):
        name, slot = random.choice(["one", "two"]), random.choice(sorted(cluster.workers))
        what = random.choice(["move", "move", "move", "scale", "kill", "start"])
        with suppress(TopologyError):  # it is being moved, or scaled
            if what == "move":
                cluster.move(name, random.choice(sorted(cluster.where(name))), slot)
            elif what == "scale":
                cluster.scale(name, first=random.randint(1, 4))
            elif what == "kill" and len(cluster.workers) > 3:
                cluster.kill(slot)
            elif what == "start":
                cluster.start(random.randrange(SLOTS))
        seen |= {(slot, worker.generation) for slot, worker in cluster.workers.items()}
        for _ in range(random.randint(1, 60)):
            cluster.step()
            for worker in cluster.workers.values():
                if worker.revision == cluster.master.revision:
                    assert_wired_as_by_the_whole(cluster, worker, seen)


def spread(cluster: LocalCluster, **slots: int) -> None:
    """Move the tasks of the components, each of which has one, to these slots."""
    for component, slot in slots.items():
        name = ACKER if component == "acker" else component
        with suppress(TopologyError):  # it is there
            cluster.move("line", TaskId(name, 0), slot)
    cluster.run_until(lambda: all(cluster.where("line")[TaskId(ACKER if name == "acker" else name, 0)] == slot
                                  for name, slot in slots.items()))
    cluster.run(0.3)


def late_line(**config: Any) -> Late:
    """A line over four nodes, one component on each and the acker on the last; slots 4 and 5 have never had a task."""
    cluster = Late(6, 6)
    cluster.submit(Line, config={**CONFIG, "topology.acker.executors": 1, "topology.workers": 4, **config})
    cluster.run(0.1)
    spread(cluster, numbers=0, through=1, sink=2, acker=3)
    return cluster


def known(cluster: LocalCluster, slot: int) -> set[int]:
    return {address.slot for address in cluster.workers[slot].known.addresses}


def is_probe(sender: int, receiver: int, frames: list[bytes]) -> bool:
    return isinstance(wire.decode_data(frames[0]), wire.Probe)


def test_a_receiver_credits_a_sender_that_it_learns_of_later() -> None:
    """The worker of the sink has not heard yet where its sender is since a loss. When it has, the credits leave: nobody has to
    probe for them."""
    cluster = late_line(**{"topology.channel.window": 2, "limit": 100_000})
    cluster.late, cluster.drop = (2,), is_probe
    cluster.kill(1)
    sender = cluster.where("line")[TaskId("through", 0)]
    assert sender not in known(cluster, 2)
    cluster.run(0.5)
    stuck = len(SEEN["sink"])
    cluster.run(0.5)
    assert len(SEEN["sink"]) == stuck, "the channel is full"
    cluster.hear()
    assert sender in known(cluster, 2)
    cluster.run(0.1)
    assert len(SEEN["sink"]) > stuck


def test_an_acker_tells_a_spout_that_it_learns_of_later() -> None:
    """The worker of the acker has not heard yet where the spout is since a loss. Its verdicts wait for that, or the spout would
    take its tuples for lost."""
    cluster = late_line(**{"topology.message.timeout.secs": 1000.0, "topology.max.spout.pending": 50, "limit": 100_000})
    cluster.late = (3,)
    cluster.kill(0)
    spout = cluster.where("line")[TaskId("numbers", 0)]
    assert spout not in known(cluster, 3)
    cluster.run(3.0)  # tuples of the time of the loss are replayed once
    stuck = len(SEEN["sink"])
    cluster.run(2.0)
    assert len(SEEN["sink"]) == stuck, "so many tuples are pending"
    cluster.hear()
    assert spout in known(cluster, 3)
    cluster.run(0.1)
    assert len(SEEN["sink"]) > stuck
