"""A worker's ways to what must outlive it: the checkpoint store, and the fragments in other workers' memory.

`save`, `manifest` and `fetch` wait: they are called on threads of the keepers. The rest returns at once.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future

from millrace.control.assignment import WorkerAddress
from millrace.errors import CorruptCheckpoint, NotEnoughFragments, StoreUnreachable
from millrace.model.graph import TaskId
from millrace.runtime.checkpoints.checkpoints import Checkpoints
from millrace.runtime.checkpoints.store import CheckpointStore
from millrace.runtime.fragments.exchange import FragmentExchange
from millrace.runtime.fragments.links import Address
from millrace.state.checkpoint import Blocks, Manifest, PieceRef, read_piece, task_prefix, topology_prefix

log = logging.getLogger("millrace.worker")


def _nowhere() -> CheckpointStore:
    raise StoreUnreachable("this worker was started without a checkpoint store")


class Vault:
    """`open_store` is called when it is first needed: most topologies keep nothing."""

    def __init__(self, open_store: Callable[[], CheckpointStore] = _nowhere, exchange: FragmentExchange | None = None) -> None:
        self._open_store, self._exchange = open_store, exchange
        self._store: CheckpointStore | None = None
        self._lock = threading.Lock()
        self._addresses: dict[int, WorkerAddress] = {}
        self._manifests: dict[str, Manifest] = {}  # of each topology the one read last
        self.counters: Counter[str] = Counter()  # blobs restored, by where they came from

    # -- threads of the keepers --------------------------------------------------------------------------------------

    def save(self, topology: str, blob: str, parts: Sequence[bytes]) -> None:
        self._checkpoints(topology).save(blob, parts)

    def manifest(self, topology: str, epoch: int, wave: int) -> Manifest:
        """Read once for all tasks of a worker."""
        with self._lock:
            known = self._manifests.get(topology)
        if known is None or (known.epoch, known.wave) != (epoch, wave):
            known = self._checkpoints(topology).manifest(epoch, wave)
            with self._lock:
                self._manifests[topology] = known
        return known

    def fetch(self, topology: str, refs: Iterable[PieceRef], held: Mapping[str, Blocks]) -> dict[PieceRef, bytes]:
        """The pieces, each checked: from fragments where there are enough, otherwise from the store."""
        wanted: dict[str, list[PieceRef]] = {}
        for ref in refs:
            wanted.setdefault(ref.blob, []).append(ref)
        found: dict[PieceRef, bytes] = {}
        for blob, answer in self._ask_for({blob: held[blob] for blob in wanted if blob in held}).items():
            found.update(self._pieces(blob, answer.result(), wanted[blob]))
        missing = [ref for pieces in wanted.values() for ref in pieces if ref not in found]
        if missing:
            found.update(zip(missing, self._checkpoints(topology).read_chain(missing), strict=True))
        self.counters["blobs_from_fragments"] += len({ref.blob for ref in found} - {ref.blob for ref in missing})
        self.counters["blobs_from_store"] += len({ref.blob for ref in missing})
        return found

    def _ask_for(self, held: Mapping[str, Blocks]) -> dict[str, Future[memoryview | NotEnoughFragments]]:
        """All of them at once."""
        asked: dict[str, Future[memoryview | NotEnoughFragments]] = {}
        if self._exchange is None:
            return asked
        for blob, blocks in held.items():
            holders = self._holders(blocks.slots)
            if len(holders) >= blocks.r:
                asked[blob] = Future()
                self._exchange.fetch(blob, blocks.r, blocks.c, holders, asked[blob].set_result)
        return asked

    def _pieces(self, blob: str, answer: memoryview | NotEnoughFragments, refs: Sequence[PieceRef]) -> dict[PieceRef, bytes]:
        try:
            if isinstance(answer, NotEnoughFragments):
                raise answer
            return {ref: read_piece(ref, answer) for ref in refs}
        except (NotEnoughFragments, CorruptCheckpoint) as error:
            log.info("%s is read from the store: %s", blob, error)
            return {}

    def _checkpoints(self, topology: str) -> Checkpoints:
        with self._lock:
            if self._store is None:
                self._store = self._open_store()
            return Checkpoints(self._store, topology)

    # -- the worker's loop -------------------------------------------------------------------------------------------

    def reach(self, workers: Iterable[WorkerAddress]) -> None:
        """These are the workers there are: nobody waits for fragments from those that are gone."""
        before = self._everyone()
        self._addresses = {address.slot: address for address in workers}
        if self._exchange is not None:
            for address in before - self._everyone():
                self._exchange.forget(address)

    def back_up(self, blob: str, parts: Sequence[bytes], blocks: Blocks) -> None:
        holders = self._holders(blocks.slots)
        if self._exchange is not None and holders:
            self._exchange.save(blob, parts, blocks.r, blocks.c, holders, self._saved)

    def _saved(self, count: int) -> None:
        self.counters["fragments_sent"] += count

    def keep(self, topology: str, task: TaskId, blobs: Iterable[str], slots: Iterable[int]) -> None:
        """Of a task's blobs only these are still needed."""
        if self._exchange is not None:
            addresses = [address for _, address in self._holders(sorted(slots))]
            self._exchange.keep(task_prefix(topology, *task), sorted(blobs), addresses, lambda heard: None)

    def forget(self, topology: str) -> None:
        """The topology has ended: nothing of it is needed any more. A worker that only holds fragments does not know."""
        with self._lock:
            self._manifests.pop(topology, None)
        if self._exchange is not None:
            self._exchange.drop(topology_prefix(topology), self._everyone(), lambda heard: None)

    def slots(self) -> set[int]:
        return set(self._addresses)

    def _everyone(self) -> set[Address]:
        return {address for _, address in self._holders(list(self._addresses))}

    def _holders(self, slots: Sequence[int]) -> list[tuple[int, Address]]:
        """(block, where it is) of those whose worker is alive."""
        return [(block, Address(address.backup_ipc, address.backup_tcp, address.boot)) for block, slot in enumerate(slots)
                if (address := self._addresses.get(slot)) is not None and address.backup_ipc]

    def close(self) -> None:
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None
