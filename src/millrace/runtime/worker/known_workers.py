"""The other workers, as far as one worker knows them from its parts of the plan."""

from __future__ import annotations

from collections.abc import Collection

from millrace.control.assignment import Assignment, WorkerAddress, numbers_in


class KnownWorkers:
    """A part has the addresses that its node needs, and the generations of all workers. An address stays known as long as its
    worker lives, even if later parts omit it: links to it, and requests to it, are not cut."""

    def __init__(self) -> None:
        self._addresses: dict[int, WorkerAddress] = {}  # by slot
        self._alive: frozenset[int] = frozenset()  # generations of all workers
        self._newest = 0  # generation of the worker that joined last, as known here

    def learn(self, assignment: Assignment) -> None:
        self._alive = frozenset(numbers_in(assignment.generations))
        self._newest = max(self._newest, *self._alive, 0)
        still = {slot: address for slot, address in self._addresses.items() if address.generation in self._alive}
        self._addresses = still | {address.slot: address for address in assignment.workers}

    @property
    def addresses(self) -> Collection[WorkerAddress]:
        return self._addresses.values()

    def generation_of(self, slot: int) -> int:
        address = self._addresses.get(slot)
        return address.generation if address is not None else 0

    def is_fenced(self, slot: int, generation: int) -> bool:
        """True if messages of that worker are refused, because it was replaced or given up. An unknown worker that is newer
        than all others has just joined."""
        known = self._addresses.get(slot)
        return generation < known.generation if known is not None else self._is_gone(generation)

    def is_lost(self, slot: int, generation: int) -> bool:
        """True if that worker is no longer in the plan. Generations rise from worker to worker, so one that joined after the
        plan was made is known by its number. The newest in a plan may be lost, too: it counts after that."""
        known = self._addresses.get(slot)
        return self._is_gone(generation) if known is None else known.generation != generation <= self._newest

    def _is_gone(self, generation: int) -> bool:
        return generation not in self._alive and generation <= self._newest
