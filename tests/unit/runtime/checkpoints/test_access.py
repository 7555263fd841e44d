"""Checkpoint access over a real exchange of fragments."""

from __future__ import annotations

import threading
from pathlib import Path

import zmq

from millrace.control.assignment import WorkerAddress
from millrace.runtime.checkpoints.access import CheckpointAccess
from millrace.runtime.checkpoints.directory import DirectoryStore
from millrace.runtime.fragments.exchange import FragmentExchange
from millrace.runtime.wire.transport import Keys, boot_id
from millrace.state.checkpoint import Blocks, pack

PATIENT = 20.0  # seconds until the test fails
NEVER = 3600.0
BLOB = "words/count/0/1-1"


def test_nobody_waits_for_fragments_of_a_worker_that_is_gone(tmp_path: Path) -> None:
    """It is asked, it dies before it answers, and the master says so: the store is read at once."""
    parts, refs = pack({3: (True, b"state")}, BLOB)
    store = DirectoryStore(tmp_path / "store")
    store.write(BLOB, parts)
    answered = threading.Event()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as dying:
        dying.bind(f"ipc://{tmp_path}/dying.ipc")
        exchange = FragmentExchange(context, "here", tmp_path, "", Keys.make(), boot_id(), lambda call: call(), silence=NEVER)
        access = CheckpointAccess(lambda: store, exchange)
        access.reach([WorkerAddress(1, 1, "node", boot_id(), "", "", f"ipc://{tmp_path}/dying.ipc", "")])
        blobs: dict[object, bytes] = {}

        def fetch() -> None:
            blobs.update(access.fetch("words", list(refs.values()), {BLOB: Blocks(1, 0, [1])}))
            answered.set()

        try:
            threading.Thread(target=fetch, daemon=True).start()
            assert dying.poll(int(PATIENT * 1000))  # the request has arrived
            access.reach([])
            assert answered.wait(PATIENT)
        finally:
            exchange.close()
    assert blobs == {refs[3]: b"state"}
    assert access.counters["blobs_from_store"] == 1
