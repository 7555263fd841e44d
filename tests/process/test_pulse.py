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


def test_its_failure_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without heartbeats the worker would seem dead."""
    ends: list[str] = []
    monkeypatch.setattr(process, "end_process", ends.append)

    def fail() -> int:
        raise KeyError("revision")

    with zmq.Context() as context:
        setup = WorkerSetup("c", "tcp://127.0.0.1:9", Keys.make(), settings={"worker.heartbeat.interval.secs": 0.05})
        pulse = Pulse(context, setup, slot=0, generation=1, revision=fail, calls=LongCalls(TaskThreads()))
        pulse.start()
        pulse.join(SECONDS)
    assert ends == ["its heartbeat thread failed: KeyError: 'revision'"]


@pytest.mark.parametrize("answers", [[wire.Fenced()] * 3, [wire.Fenced(), wire.Beat(1), wire.Beat(1)]])
def test_it_ends_with_unread_messages_after_being_fenced(answers: list[object]) -> None:
    keys = Keys.make()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as master:
        serve(master, keys)
        setup = WorkerSetup("c", bind_tcp(master, "127.0.0.1"), keys, settings={"worker.heartbeat.interval.secs": 0.05})
        pulse = Pulse(context, setup, slot=0, generation=1, revision=lambda: 0, calls=LongCalls(TaskThreads()))
        pulse.start()
        assert master.poll(int(SECONDS * 1000))
        identity, _ = master.recv_multipart()
        for answer in answers:
            master.send_multipart([identity, wire.encode(answer)])
        while not pulse.fenced:
            assert master.poll(int(SECONDS * 1000)), "it has stopped beating"
            master.recv_multipart()
        pulse.stop()
        assert not pulse.is_alive()
