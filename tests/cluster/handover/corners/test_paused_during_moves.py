"""A topology that is paused while a spout moves counts as drained only when the spout has arrived, with its position."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.control.assignment import SWITCH
from millrace.control.events import Paused
from millrace.model.graph import TaskId
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster
from millrace.workloads.audit import AuditedWordCount, NumberedLines, audit

SECONDS = 5.0  # of the virtual clock: many reports


def test_not_drained_while_a_spout_is_between_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, spout = LocalCluster(workers=3, nodes=3), TaskId("lines", 0)
    monkeypatch.setattr(NumberedLines, "clock", staticmethod(cluster.clock.now))
    monkeypatch.setattr(NumberedLines, "wall_clock", staticmethod(cluster.clock.now))
    cluster.submit(AuditedWordCount, name="audited", config={"path": str(tmp_path), "rate": 400.0})
    topology = cluster.master.topologies["audited"]
    cluster.run_until(lambda: topology.status == "running")
    cluster.run(0.59)  # not long after a report
    post, held = cluster.post, []

    def hold_state_back(sender: object, address: object, frames: list[bytes]) -> None:
        if isinstance(wire.decode_data(frames[0]), wire.StatePart):
            held.append((sender, address, frames))
        else:
            post(sender, address, frames)

    monkeypatch.setattr(cluster, "post", hold_state_back)
    cluster.move("audited", spout, (topology.places[spout].slot + 1) % 3)
    cluster.run_until(lambda: bool(held))
    cluster.tell(Paused("audited"))
    cluster.run(SECONDS)
    assert topology.handover.phase == SWITCH and not cluster.master.drained(topology)

    for message in held:
        post(*message)
    cluster.run_until(lambda: cluster.master.drained(topology))
    result = audit(tmp_path, {task.index: position for task, position in topology.positions.items()})
    assert (result.lost, result.repeated, result.beyond) == (0, 0, 0) and result.tuples_in > 0
