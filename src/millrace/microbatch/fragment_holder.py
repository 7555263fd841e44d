"""Holds fragments of other processes' snapshots in the memory of an executor's Python process, from batch to batch."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import zmq

from millrace.config import BACKUP_MEMORY
from millrace.control.assignment import WorkerAddress
from millrace.runtime.fragments.exchange import FragmentExchange
from millrace.runtime.leftovers import UsedDirectory, sweep
from millrace.runtime.wire.transport import Gate, boot_id
from millrace.runtime.worker.process import WorkerSetup, address_facing


class FragmentHolder:
    """The fragment exchange of this process. Its threads answer even while Spark runs nothing here."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._context = zmq.Context()
        self._boot = boot_id()
        bind = address_facing(setup.master) if setup.bind == "auto" else setup.bind
        self._gate = Gate(self._context, setup.keys) if bind else None
        self._directory = UsedDirectory(Path(setup.directory()))
        sweep(self._directory.path.parent)
        self.exchange = FragmentExchange(
            self._context, f"h{os.getpid()}-{uuid.uuid4().hex[:12]}", self._directory.path, bind, setup.keys,
            self._boot, lambda call: call(), int(BACKUP_MEMORY.of(setup.settings) * 2**20))

    def address(self, slot: int) -> WorkerAddress:
        ends = self.exchange.endpoints
        return WorkerAddress(slot, 0, "", self._boot, "", "", ends.ipc, ends.tcp)

    def close(self) -> None:
        self.exchange.close()
        if self._gate is not None:
            self._gate.close()
        self._context.term()
        self._directory.leave()
