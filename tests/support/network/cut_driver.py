"""A driver and a worker on one host, a worker on the other, and a stream between them while the cable is cut.

As a program (the request in JSON on stdin) it runs on the first host. It fails unless the output and the state are exact.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from millrace.config import CHECKPOINTS, HEARTBEAT_TIMEOUT, LEASE
from millrace.testing.processes import run_worker_on
from support.network.hosts import Host
from support.processes.cutting import established_to, port_of
from support.processes.forked import ForkedCluster, forked
from support.topologies.audited import SECONDS, StatefulStream, assert_all_exact

NEAR, FAR = 0, 1  # slots


class TwoHostCluster(ForkedCluster):
    """The driver is on the near host."""

    def __init__(self, near: Host, far: Host, settings: dict[str, Any]) -> None:
        self._hosts = {NEAR: near, FAR: far}
        super().__init__(len(self._hosts), host=near.address, bind="auto", apart=True, settings=settings)

    def start(self, slot: int) -> None:
        self.processes[slot] = forked(run_worker_at, self._hosts[slot], self.setup(), slot)


def run_worker_at(host: Host, setup: Any, slot: int) -> str:
    host.enter()
    return run_worker_on(setup, slot, host.namespace, apart=True)


def cut_unnoticed(cluster: TwoHostCluster, stream: StatefulStream, far: Host) -> None:
    """Pull the cable until the connection that carried tuples was given up. The driver waits longer, so no task moves."""
    port = port_of(cluster.master.state.workers[FAR].address.tcp)
    before = established_to(port)
    assert before, "tuples must cross"
    with far.unplugged():
        stream.until(lambda: not before & established_to(port))
    stream.until(lambda: bool(established_to(port)))
    assert stream.state.losses == 0


def cut_noticed(cluster: TwoHostCluster, stream: StatefulStream, far: Host) -> None:
    """Pull the cable until the far worker is lost and its tasks run on the near one; it comes back afterwards."""
    patience = cluster.master.worker_port.patience
    with far.unplugged():
        patience.timeout = HEARTBEAT_TIMEOUT.default
        stream.until(lambda: FAR not in cluster.master.state.workers)
        patience.timeout = SECONDS
        stream.wave(2)
        assert stream.slots() == {NEAR}
    stream.until(lambda: FAR in stream.slots())
    assert stream.state.losses > 0


CUTS = {"unnoticed": cut_unnoticed, "noticed": cut_noticed}


def main() -> None:
    request = json.loads(sys.stdin.read())
    near, far, directory = Host(**request["near"]), Host(**request["far"]), Path(request["directory"])
    settings = {CHECKPOINTS.key: str(directory / "store"), HEARTBEAT_TIMEOUT.key: SECONDS, LEASE.key: SECONDS}
    with TwoHostCluster(near, far, settings) as cluster:
        stream = StatefulStream(cluster.master, directory)
        stream.wave(1)
        assert stream.slots() == {NEAR, FAR}
        CUTS[request["cut"]](cluster, stream, far)
        stream.wave(2)
        assert_all_exact(stream.finish_both())


if __name__ == "__main__":
    main()
