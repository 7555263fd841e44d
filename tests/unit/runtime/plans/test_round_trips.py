"""The probe of links between nodes, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import zmq

from millrace.runtime.plans.round_trips import LinkProbe
from millrace.runtime.wire.transport import Keys, bind_tcp, serve

KEYS = Keys.make()
MANY = 30  # attempts


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def endpoint(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[str]:
    with context.socket(zmq.PULL) as server:
        serve(server, KEYS)
        yield bind_tcp(server, "127.0.0.1")


def measured(probe: LinkProbe, endpoint: str, attempts: int = 1) -> list[tuple[str, float, float]]:
    """The measurements of one attempt, or of the first of several that has some. On a busy machine one may be too late."""
    for _ in range(attempts):
        probe.begin("there", [endpoint])
        for thread in threading.enumerate():
            if thread.name == "link probe":
                thread.join()
        if found := probe.take():
            return found
    return []


def test_the_kernel_tells_the_round_trip(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
    probe = LinkProbe(context, KEYS)
    for _ in range(20):
        [(node, round_trip, _)] = measured(probe, endpoint, MANY)
        assert node == "there" and round_trip > 0
    probe.close()


def test_a_peer_that_refuses_the_connection_does_not_hold_the_probe(context: zmq.Context[zmq.Socket[bytes]],
                                                                    endpoint: str) -> None:
    stranger = LinkProbe(context, Keys.make())
    assert measured(stranger, endpoint) == []
    stranger.close()
    assert len(measured(LinkProbe(context, KEYS), endpoint, MANY)) == 1  # nothing is left of the failed attempt


def test_nobody_listens(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with context.socket(zmq.PULL) as server:
        closed = bind_tcp(server, "127.0.0.1")
    assert measured(LinkProbe(context, KEYS), closed) == []
