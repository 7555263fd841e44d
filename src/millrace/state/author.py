"""The author of a topology's checkpoints: the driver that took the topology over last, and alone may commit waves."""

from __future__ import annotations

import msgspec

STEP = 1000  # between the epochs of two drivers: the earlier one may have rolled back that often without reaching the store


class Author(msgspec.Struct, frozen=True):
    """A driver as the store names it. Its epochs begin at `epoch`. `fresh`: it began without the checkpoints of
    earlier runs. `upto`: the last epoch of the run that it continues or replaces, if fresh runs have come after that run and
    committed nothing; otherwise 0."""

    run: str
    epoch: int = 0
    fresh: bool = False
    at: float = 0.0
    process: str = ""
    upto: int = 0

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Author:
        """Reads what `encode` wrote. Earlier versions wrote only the name of the run."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return cls(data.decode(errors="replace"))

    def __str__(self) -> str:
        return f"{self.process} (epoch {self.epoch})" if self.process else self.run


def first_epoch(newest: int, least: int) -> int:
    """The first epoch of a driver. `newest`: the largest known of others, 0 if there is none; `least`: that of the driver's
    cluster."""
    return max(least, newest + STEP if newest else 1)
