"""Fragment holders in separate processes, killed while idle and while they answer."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue
from random import Random
from typing import Any

import pytest
import zmq

from millrace.errors import NotEnoughFragments
from millrace.runtime.fragments.exchange import FragmentExchange
from millrace.runtime.fragments.links import Address
from millrace.runtime.wire.transport import Keys, boot_id

BLOB = "words/count/0/1-1"
DATA = Random(3).randbytes(20_000_003)
PATIENT = 60.0
SHORT = 2.0  # of silence, where holders are gone


def hold(name: str, directory: str, keys: tuple[bytes, bytes], pipe: Connection) -> None:
    """Hold fragments until the pipe closes; runs in its own process."""
    with zmq.Context() as context:
        exchange = FragmentExchange(context, name, Path(directory), "", Keys(*keys), boot_id(), lambda call: call())
        pipe.send(tuple(exchange.endpoints))
        pipe.poll(None)
        exchange.close()


class Holder:
    def __init__(self, number: int, directory: Path, keys: Keys) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=hold, args=(f"h{number}", str(directory), (keys.public, keys.secret), theirs))
        self.process.start()
        theirs.close()

    def address(self) -> Address:
        assert self.pipe.poll(PATIENT)
        return Address(*self.pipe.recv())


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[list[Holder]]:
    keys = Keys.make()
    started = [Holder(number, tmp_path, keys) for number in range(5)]
    yield started
    for holder in started:
        holder.pipe.close()
        holder.process.join(PATIENT)
        holder.process.close()


def test_a_blob_outlives_holders_that_are_killed(holders: list[Holder], tmp_path: Path) -> None:
    answers: Queue[Any] = Queue()
    where = [(index, holder.address()) for index, holder in enumerate(holders)]

    @contextmanager
    def exchange(name: str, silence: float) -> Iterator[FragmentExchange]:
        with zmq.Context() as context:
            opened = FragmentExchange(context, name, tmp_path, "", Keys.make(), boot_id(), lambda call: call(), silence=silence)
            try:
                yield opened
            finally:
                opened.close()

    with exchange("saving", PATIENT) as saving:
        saving.save(BLOB, [DATA], 3, 2, where, answers.put)
        assert answers.get(timeout=PATIENT) == 5
        saving.fetch(BLOB, 3, 2, where, answers.put)
        holders[0].process.kill()  # perhaps in the middle of an answer
        assert answers.get(timeout=PATIENT) == DATA
    holders[2].process.kill()
    with exchange("with-enough", PATIENT) as fetching:  # three fragments are enough: nobody waits for the dead
        fetching.fetch(BLOB, 3, 2, where, answers.put)
        assert answers.get(timeout=PATIENT) == DATA
    holders[4].process.kill()
    with exchange("with-too-few", SHORT) as fetching:  # only the silence of the dead ends the wait
        fetching.fetch(BLOB, 3, 2, where, answers.put)
        error = answers.get(timeout=PATIENT)
        assert isinstance(error, NotEnoughFragments) and "0: its holder does not answer" in str(error)
