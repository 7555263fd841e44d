"""A worker's access to checkpoints: copies on its own disk, fragments in the memory of other workers, the checkpoint store.

`save`, `manifest` and `fetch` block: they run on the store threads of the worker's tasks. Everything else returns at once.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future

from millrace.control.assignment import WorkerAddress
from millrace.errors import CorruptCheckpoint, NotEnoughFragments, StoreUnreachable
from millrace.model.graph import TaskId
from millrace.runtime.checkpoints.local_copies import LocalCopies
from millrace.runtime.checkpoints.paced_work import PacedWork
from millrace.runtime.checkpoints.store import CheckpointStore
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.runtime.checkpoints.trial import join_trial
from millrace.runtime.fragments.exchange import FragmentExchange
from millrace.runtime.fragments.links import Address
from millrace.state.checkpoint import Blocks, Manifest, PieceRef, read_piece, task_prefix, topology_prefix

log = logging.getLogger("millrace.worker")


def _nowhere() -> CheckpointStore:
    raise StoreUnreachable("this worker was started without a checkpoint store")


class CheckpointAccess:
    """Saves and restores the snapshots of a worker's tasks. The store is opened on first use: most topologies keep no state."""

    def __init__(self, open_store: Callable[[], CheckpointStore] = _nowhere, exchange: FragmentExchange | None = None,
                 copies: LocalCopies | None = None, pace: PacedWork | None = None) -> None:
        self.pace = pace or PacedWork()
        self._open_store, self._exchange, self._copies = open_store, exchange, copies
        self._store: CheckpointStore | None = None
        self._lock = threading.Lock()  # held only for moments: the loop takes it, too
        self._opening = threading.Lock()  # held while the store is opened, which may hang
        self._addresses: dict[int, WorkerAddress] = {}
        self._manifests: dict[str, Manifest] = {}  # the last one read, by topology
        self.counters: Counter[str] = Counter()  # blobs restored, by their source

    # -- store threads -----------------------------------------------------------------------------------------------

    def save(self, topology: str, blob: str, parts: Sequence[bytes]) -> None:
        self._checkpoints(topology).save(blob, parts)
        if self._copies is not None:
            self._copies.add(blob, parts)

    def join_trial(self, token: str, who: str) -> str:
        """Take part in a trial of the store, see `trial.join_trial`."""
        try:
            store = self._opened()
        except Exception as error:  # of any store, or none is set
            return f"{type(error).__name__}: {error}"
        return join_trial(store, token, who)

    def manifest(self, topology: str, epoch: int, wave: int) -> Manifest:
        """The manifest of a wave, read once for all tasks of the worker."""
        with self._lock:
            known = self._manifests.get(topology)
        if known is None or (known.epoch, known.wave) != (epoch, wave):
            known = self._checkpoints(topology).manifest(epoch, wave)
            with self._lock:
                self._manifests[topology] = known
        return known

    def fetch(self, topology: str, refs: Collection[PieceRef],
              held: Mapping[str, Blocks] | None = None) -> dict[PieceRef, bytes]:
        """Fetch and check pieces: from local copies, then from fragments where enough are `held`, otherwise from the store."""
        local = self._copies.read(refs) if self._copies is not None else {}
        fetched = self._from_fragments([ref for ref in refs if ref not in local], held or {})
        missing = [ref for ref in refs if ref not in local and ref not in fetched]
        stored = dict(zip(missing, self._checkpoints(topology).read_chain(missing), strict=True)) if missing else {}
        for source, pieces in (("copies", local), ("fragments", fetched), ("store", stored)):
            self.counters[f"blobs_from_{source}"] += len({ref.blob for ref in pieces})
        if self._copies is not None:
            self._copies.add_pieces(fetched | stored)
        return local | fetched | stored

    def _from_fragments(self, refs: Iterable[PieceRef], held: Mapping[str, Blocks]) -> dict[PieceRef, bytes]:
        wanted: dict[str, list[PieceRef]] = {}
        for ref in refs:
            wanted.setdefault(ref.blob, []).append(ref)
        fetched: dict[PieceRef, bytes] = {}
        for blob, answer in self._request({blob: held[blob] for blob in wanted if blob in held}).items():
            fetched.update(self._pieces(blob, answer.result(), wanted[blob]))
        return fetched

    def _request(self, held: Mapping[str, Blocks]) -> dict[str, Future[memoryview | NotEnoughFragments]]:
        """Request all blobs from their holders at once."""
        answers: dict[str, Future[memoryview | NotEnoughFragments]] = {}
        if self._exchange is None:
            return answers
        for blob, blocks in held.items():
            holders = self._holders(blocks.slots)
            if len(holders) >= blocks.r:
                answers[blob] = Future()
                self._exchange.fetch(blob, blocks.r, blocks.c, holders, answers[blob].set_result)
        return answers

    def _pieces(self, blob: str, answer: memoryview | NotEnoughFragments, refs: Sequence[PieceRef]) -> dict[PieceRef, bytes]:
        try:
            if isinstance(answer, NotEnoughFragments):
                raise answer
            return {ref: read_piece(ref, answer) for ref in refs}
        except (NotEnoughFragments, CorruptCheckpoint) as error:
            log.info("%s is read from the store: %s", blob, error)
            return {}

    def _checkpoints(self, topology: str) -> Checkpoints:
        return Checkpoints(self._opened(), topology)

    def _opened(self) -> CheckpointStore:
        with self._opening:
            self._store = self._store or self._open_store()
            return self._store

    # -- the worker's loop -------------------------------------------------------------------------------------------

    def reach(self, workers: Iterable[WorkerAddress]) -> None:
        """Set the live workers; requests to workers that are gone fail at once."""
        before = self._all_addresses()
        self._addresses = {address.slot: address for address in workers}
        if self._exchange is not None:
            for address in before - self._all_addresses():
                self._exchange.forget(address)

    def back_up(self, blob: str, parts: Sequence[bytes], blocks: Blocks) -> None:
        holders = self._holders(blocks.slots)
        if self._exchange is not None and holders:
            self._exchange.save(blob, parts, blocks.r, blocks.c, holders, self._saved)

    def _saved(self, count: int) -> None:
        self.counters["fragments_sent"] += count

    def keep(self, topology: str, task: TaskId, blobs: Iterable[str], slots: Iterable[int]) -> None:
        """Tell holders that only these blobs of a task are still needed."""
        if self._exchange is not None:
            addresses = [address for _, address in self._holders(sorted(slots))]
            self._exchange.keep(task_prefix(topology, *task), sorted(blobs), addresses, lambda count: None)

    def keep_copies(self, topology: str, task: TaskId, blobs: Collection[str], wave: int) -> None:
        """Remove local copies of the task, up to this wave, that are no longer needed."""
        if self._copies is not None:
            self._copies.keep(task_prefix(topology, *task), blobs, wave)

    def forget(self, topology: str) -> None:
        """Discard everything of a topology that has ended, even in workers that only hold fragments of it."""
        with self._lock:
            self._manifests.pop(topology, None)
        if self._copies is not None:
            self._copies.drop(topology_prefix(topology))
        if self._exchange is not None:
            self._exchange.drop(topology_prefix(topology), self._all_addresses(), lambda count: None)

    def slots(self) -> set[int]:
        return set(self._addresses)

    def _all_addresses(self) -> set[Address]:
        return {address for _, address in self._holders(list(self._addresses))}

    def _holders(self, slots: Sequence[int]) -> list[tuple[int, Address]]:
        """(block, address) of the holders that are alive."""
        return [(block, Address(address.backup_ipc, address.backup_tcp, address.boot)) for block, slot in enumerate(slots)
                if (address := self._addresses.get(slot)) is not None and address.backup_ipc]

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()
