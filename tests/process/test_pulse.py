"""The heartbeat thread ends on request, even with unread messages."""

from __future__ import annotations

import pytest
import zmq

from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.transport import Keys, bind_tcp, serve
from millrace.runtime.worker import process
from millrace.runtime.worker.long_calls import LongCalls
from millrace.runtime.worker.process import Pulse, WorkerSetup
from millrace.runtime.worker.threads import TaskThreads
from support.topologies.audited import SECONDS


class Ended(Exception):
    """Ends the heartbeat thread where the process would end."""


@pytest.fixture(autouse=True)
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The reasons for which the process would have ended."""
    reasons: list[str] = []

    def end(why: str) -> None:
        reasons.append(why)
        if len(reasons) == 1:
            raise Ended

    monkeypatch.setattr(process, "end_process", end)
    return reasons


def long_calls() -> LongCalls:
    """The calls of a loop that has just turned; no task has had a turn."""
    return LongCalls(TaskThreads(), lambda: float("-inf"))


def test_its_failure_ends_the_worker(ends: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without heartbeats the worker would seem dead."""
    monkeypatch.setattr(process, "end_process", ends.append)

    def fail() -> int:
        raise KeyError("revision")

    with zmq.Context() as context:
        setup = WorkerSetup("c", "tcp://127.0.0.1:9", Keys.make(), settings={"worker.heartbeat.interval.secs": 0.05})
        pulse = Pulse(context, setup, slot=0, generation=1, revision=fail, calls=long_calls())
        pulse.start()
        pulse.join(SECONDS)
    assert ends == ["its heartbeat thread failed: KeyError: 'revision'"]


@pytest.mark.parametrize(("answer", "reason"), [
    (wire.Fenced("process of a[0] hangs"), "process of a[0] hangs"),
    (wire.Fenced(), "it was fenced, and its loop has not turned for 5 s")])
def test_it_ends_the_worker_that_was_given_up_or_is_fenced_and_stuck(ends: list[str], answer: wire.Fenced, reason: str) -> None:
    keys, calls = Keys.make(), long_calls()
    calls.turned -= 3600
    with zmq.Context() as context, context.socket(zmq.ROUTER) as master:
        serve(master, keys)
        settings = {"worker.heartbeat.interval.secs": 0.05, "worker.lease.secs": 5.0}
        pulse = Pulse(context, WorkerSetup("c", bind_tcp(master, "127.0.0.1"), keys, settings=settings), slot=0, generation=1,
                      revision=lambda: 0, calls=calls)
        pulse.start()
        assert master.poll(int(SECONDS * 1000))
        identity, heartbeat = master.recv_multipart()
        assert wire.decode_control(heartbeat).long_calls[0].seconds > 3600
        master.send_multipart([identity, wire.encode(answer)])
        pulse.join(SECONDS)
        assert not pulse.is_alive()
    assert ends[0] == reason


@pytest.mark.parametrize("answers", [[wire.Fenced()] * 3, [wire.Fenced(), wire.Beat(1), wire.Beat(1)]])
def test_it_ends_with_unread_messages_after_being_fenced(ends: list[str], answers: list[object]) -> None:
    keys = Keys.make()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as master:
        serve(master, keys)
        setup = WorkerSetup("c", bind_tcp(master, "127.0.0.1"), keys, settings={"worker.heartbeat.interval.secs": 0.05})
        pulse = Pulse(context, setup, slot=0, generation=1, revision=lambda: 0, calls=long_calls())
        pulse.start()
        assert master.poll(int(SECONDS * 1000))
        identity, _ = master.recv_multipart()
        for answer in answers:
            master.send_multipart([identity, wire.encode(answer)])
        while not pulse.fenced:
            assert master.poll(int(SECONDS * 1000)), "it has stopped beating"
            master.recv_multipart()
        pulse.stop()
        assert not pulse.is_alive() and not ends
