"""Malformed frames from a peer that has the cluster's key are counted and dropped, and the stream stays exact."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_origin

import msgspec
import pyarrow as pa
import pytest
import zmq

from millrace.master.service import Master
from millrace.model.cluster import Node
from millrace.model.graph import TaskId
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import encode_batch
from millrace.runtime.wire.transport import boot_id, visit
from support.processes.ending import presumed_dead
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, AuditedStream, assert_exact, assert_nothing_lost

noise = random.Random(2).randbytes
pack = msgspec.msgpack.encode
FRAME_LIMIT = 1 << 20
STRANGER = (99, 10**6)  # worker and generation: to the others, a worker that has just joined
SHAPES = [1, "text", None, True, [], {}, [99], [1, 2], [1] * 50, [1, "a"] + [0] * 15, [1, *[2**63] * 17], {"type": 1}]
NESTED = b"\x91" * 100_000 + b"\x00"
ROW = pack([[0, 10**12, "a line that no spout has sent"]])


class Victim:
    """A task of the stream, and forged chunks addressed to it."""

    def __init__(self, stream: AuditedStream) -> None:
        self.state = stream.state
        self.graph = stream.state.graph
        self.target = TaskId("split", 0)
        self.place = stream.state.places[self.target]
        self._incarnations = iter(range(10**6, 10**7))  # each chunk pretends to come from another channel

    def number(self, component: str) -> int:
        return self.graph.number(TaskId(component, 0))

    def chunk(self, **changes: Any) -> bytes:
        fields = {"topology": self.state.number, "epoch": 0, "version": self.state.version, "source": self.number("lines"),
                  "source_incarnation": next(self._incarnations), "target": self.graph.number(self.target),
                  "target_incarnation": self.place.incarnation, "stream": 0, "seq": 0, "count": 1, "form": wire.ROWS,
                  "edge": 0, "roots": [], "attempt": 0, "age": 0.0, **changes}
        return wire.encode(wire.Chunk(*STRANGER, **fields))


def batch(**columns: list[Any]) -> bytes:
    return encode_batch(pa.record_batch(list(columns.values()), list(columns))).to_pybytes()


def malformed(victim: Victim) -> Iterator[tuple[str, list[bytes]]]:
    """Malformed messages as name and frames."""
    yield "noise", [noise(60)]
    yield "nothing", [b""]
    yield "deeply nested", [NESTED]
    yield from ((f"shape {shape!r:.30}", [pack(shape)]) for shape in SHAPES)
    yield "a chunk without a body", [victim.chunk()]
    yield "a chunk with two bodies", [victim.chunk(), ROW, ROW]
    yield "an unknown source", [victim.chunk(source=999), ROW]
    yield "a negative source", [victim.chunk(source=-1), ROW]
    yield "a source that is not upstream", [victim.chunk(source=victim.number("count")), pack([[0, 1, 2, "word"]])]
    yield "an unknown stream", [victim.chunk(stream=99), ROW]
    yield "a negative stream", [victim.chunk(stream=-1), ROW]
    yield "a negative count", [victim.chunk(count=-5), ROW]
    yield "a huge count", [victim.chunk(count=2**62), ROW]
    yield from ((f"body: {name}", [victim.chunk(), body]) for name, body in BODIES.items())
    yield from ((f"Arrow: {name}", [victim.chunk(form=wire.ARROW), body]) for name, body in ARROW.items())


def own_root(victim: Victim) -> list[tuple[int, int]]:
    """A root, finished at once, for an acker of the victim's worker."""
    mine = [task.index for task, place in victim.state.places.items()
            if task.component == "__acker" and place.slot == victim.place.slot]
    return [((mine[0] << 48) + 5, 0)]


GOOD_BATCH = batch(task=[1], position=[10**12], line=["a line that no spout has sent"])
BODIES = {"noise": noise(100), "nothing": b"", "too few fields": pack([[1]]), "no list": pack(7),
          "an unknown extension": pack([[msgspec.msgpack.Ext(9, b"x"), 1, "x"]]), "nested": b"\x91\x93\x00\x00" + NESTED}
ARROW = {"noise": noise(200), "nothing": b"", "cut in the schema": GOOD_BATCH[:100], "cut in the data": GOOD_BATCH[:-60],
         "other columns": batch(other=[1])}


def stale(victim: Victim) -> Iterator[tuple[str, list[bytes]]]:
    """Well-formed messages for tasks that are not here."""
    yield "an unknown task", [victim.chunk(target=999), ROW]
    yield "a negative task", [victim.chunk(target=-1), ROW]
    yield "a spout", [victim.chunk(target=victim.number("lines")), ROW]
    yield "another incarnation", [victim.chunk(target_incarnation=victim.place.incarnation + 1), ROW]


def harmless(victim: Victim) -> Iterator[tuple[str, list[bytes]]]:
    """Well-formed messages without content: dropped without being counted."""
    number, lines = victim.state.number, victim.number("lines")
    yield "acks", [wire.encode(wire.Acks(*STRANGER, number, 1, [(-1, 5), (2**63 - 1, 3)]))]
    yield "acks of a plan that never comes", [wire.encode(wire.Acks(*STRANGER, number, 10**9, [(-1, 5), (2**63 - 1, 3)]))]
    yield "fails", [wire.encode(wire.Fails(*STRANGER, number, 1, [-1, 2**63 - 1]))]
    yield "roots of nobody", [wire.encode(wire.Roots(*STRANGER, number, 1, (99, 999, 1), own_root(victim)))]
    yield "a ledger of nobody's", [wire.encode(wire.LedgerHandover(*STRANGER, number, 1, -1, [(5, 6, None)], [7]))]
    yield "verdicts", [wire.encode(wire.Verdicts(*STRANGER, number, lines, victim.place.incarnation, [1], [2]))]
    yield "verdicts for nobody", [wire.encode(wire.Verdicts(*STRANGER, number, 999, 1, [1], [2]))]
    yield "credits", [wire.encode(wire.Credits(*STRANGER, [(9, 9, 9, 9, 9), (number, lines, 999, 1, 1), (-1, -1, -1, -1, -1)]))]
    yield "an unknown topology", [victim.chunk(topology=999), ROW]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ForkedCluster]:
    with ForkedCluster(2, bind="127.0.0.1", settings={"wire.frame.limit.bytes": FRAME_LIMIT}) as cluster:
        yield cluster


@pytest.fixture
def stream(cluster: ForkedCluster, tmp_path: Path) -> AuditedStream:
    stream = AuditedStream(cluster.master, tmp_path)
    stream.advance(300)
    return stream


@pytest.fixture
def sender(request: pytest.FixtureRequest, cluster: ForkedCluster, stream: AuditedStream) -> Iterator[zmq.Socket]:
    """A socket to the data port of the victim's worker, over ipc or tcp as the test's parameter says."""
    address = cluster.master.state.workers[Victim(stream).place.slot].address
    with zmq.Context() as context, context.socket(zmq.PUSH) as client:
        client.linger = 0
        if request.param == "tcp":
            visit(client, cluster.master.keys)
        client.connect(getattr(address, request.param))
        yield client


def assert_undisturbed(stream: AuditedStream) -> None:
    stream.advance(300)
    assert stream.state.losses == 0
    assert_exact(stream.finish())


@pytest.mark.parametrize("sender", ["ipc", "tcp"], indirect=True)
def test_on_a_data_port(sender: zmq.Socket, cluster: ForkedCluster, stream: AuditedStream) -> None:
    victim = Victim(stream)

    def counted(name: str) -> int:
        return cluster.master.connections[victim.place.slot].counters[name]

    for counter, cases in (("malformed", malformed(victim)), ("stale", stale(victim))):
        before, sent = counted(counter), 0
        for _, frames in cases:
            sender.send_multipart(frames)
            sent += 1
        stream.until(lambda counter=counter, total=before + sent: counted(counter) >= total)
        assert counted(counter) == before + sent
    for _, frames in harmless(victim):
        sender.send_multipart(frames)
    assert_undisturbed(stream)


@pytest.mark.parametrize("sender", ["ipc", "tcp"], indirect=True)
def test_a_frame_beyond_the_limit_closes_the_connection(sender: zmq.Socket, stream: AuditedStream) -> None:
    gone = sender.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    sender.send(bytes(2 * FRAME_LIMIT))
    assert gone.poll(60_000), "the worker must not take it in"
    sender.disable_monitor()
    assert_undisturbed(stream)


def report(cluster: ForkedCluster, **changes: Any) -> list[bytes]:
    """An empty report of worker 0 with these changes."""
    empty = {field.name: get_origin(field.type) or field.type for field in msgspec.structs.fields(wire.Report)}
    fields = {name: kind() for name, kind in empty.items()} | {"generation": cluster.master.connections[0].generation}
    return [wire.encode(wire.Report(**{**fields, **changes}))]


def nested_report(cluster: ForkedCluster) -> list[bytes]:
    mark = b"something to be found again"
    [frame] = report(cluster, tasks=[{"deep": mark}])
    assert pack(mark) in frame
    return [frame.replace(pack(mark), NESTED)]


def hello(**changes: Any) -> list[bytes]:
    fields = {"slot": 50, "pid": 1, "node": Node("h", 1, 1000.0, 1024), "boot": boot_id(), "executor": "",
              "data_ipc": "ipc:///nowhere/x", "data_tcp": "", **changes}
    return [wire.encode(wire.Hello(**fields))]


def bad_control(cluster: ForkedCluster) -> Iterator[tuple[str, list[bytes]]]:
    yield "noise", [noise(60)]
    yield "nothing", [b""]
    yield "three frames", [b"a", b"b", b"c"]
    yield from ((f"shape {shape!r:.30}", [pack(shape)]) for shape in SHAPES)
    yield "a nested report", nested_report(cluster)
    yield "a chunk", [wire.encode(wire.Credits(*STRANGER, []))]
    yield "a negative slot", hello(slot=-1)
    yield "no address", hello(data_ipc="")
    yield "a strange address", hello(data_ipc="nonsense")
    yield "another strange address", hello(data_tcp="nonsense")


def strange_control(cluster: ForkedCluster) -> Iterator[tuple[str, list[bytes]]]:
    """Readable control messages that no worker would send."""
    yield "a report without tasks' names", report(cluster, tasks=[{}])
    yield "a report of an unknown task", report(cluster, tasks=[{"topology": 1, "task": 999, "incarnation": 1}])
    yield "a position of an unknown task", report(cluster, positions=[(1, 999, 5)])
    yield "an error without a text", report(cluster, errors=[{"fatal": True}])
    yield "a heartbeat of nobody", [wire.encode(wire.Heartbeat(99, 1, 0))]
    yield "good-bye of nobody", [wire.encode(wire.Bye(99, 1))]
    yield "what only a master says", [wire.encode(wire.Stop())]


@pytest.fixture
def control(cluster: ForkedCluster) -> Iterator[zmq.Socket]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        visit(client, cluster.master.keys)
        client.connect(cluster.master.endpoint)
        yield client


def test_on_the_master_s_port(control: zmq.Socket, cluster: ForkedCluster, stream: AuditedStream) -> None:
    master = cluster.master
    before, cases = master.worker_port.malformed, list(bad_control(cluster))
    for _, frames in cases:
        control.send_multipart(frames)
    stream.until(lambda: master.worker_port.malformed >= before + len(cases))
    assert master.worker_port.malformed == before + len(cases)
    assert master.status()["malformed"] == master.worker_port.malformed
    for _, frames in strange_control(cluster):
        control.send_multipart(frames)
    control.send(wire.encode(wire.Heartbeat(99, 1, 0)))
    answers = [wire.decode_control(control.recv()) for _ in range(2)]  # everything before it has been received
    assert any(isinstance(answer, wire.Fenced) for answer in answers)
    assert_undisturbed(stream)


def test_a_frame_beyond_the_limit_to_the_master(control: zmq.Socket, stream: AuditedStream) -> None:
    gone = control.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    control.send(bytes(2 * FRAME_LIMIT))
    assert gone.poll(60_000)
    control.disable_monitor()
    assert_undisturbed(stream)


def tried_and_lost(master: Master, guest: int, topology: str) -> Callable[[], bool]:
    """A condition: the guest is presumed dead, after all others have started their tasks of a plan that has tasks on it."""
    lost, tried = presumed_dead(master, guest), list[int]()

    def condition() -> bool:
        state = master.state
        if not tried and topology in state.topologies:
            hosts = {place.slot for place in state.topologies[topology].places.values()}
            others = [worker for slot, worker in state.workers.items() if slot != guest]
            if guest in hosts and all(worker.revision == state.revision for worker in others):
                tried.append(state.revision)
        return bool(tried) and lost()

    return condition


def test_a_worker_that_the_others_cannot_reach(control: zmq.Socket, cluster: ForkedCluster, stream: AuditedStream,
                                               tmp_path: Path) -> None:
    """A worker on another host without a port: it gets tasks, and the other workers must survive that."""
    control.send_multipart(hello(boot="another host", pid=2**40))
    stream.until(lambda: 50 in cluster.master.state.workers)
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(cluster.master.wait_until, tried_and_lost(cluster.master, 50, "second"), SECONDS)
        second = AuditedStream(cluster.master, tmp_path / "second", "second")  # runs once the guest is presumed dead
        assert lost.result()
    assert set(cluster.master.state.workers) == {0, 1}
    assert all(process.is_alive() for process in cluster.processes.values())
    for each in (stream, second):
        each.advance(300)
        assert_nothing_lost(each.finish())
