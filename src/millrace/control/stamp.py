"""What orders the versions of the plans: first who wrote them, then which of theirs it is."""

from __future__ import annotations

from typing import NamedTuple


class Stamp(NamedTuple):
    """A later author's first revision is newer than an earlier author's last: what a master that was replaced still
    sends is old by its very number."""

    author: int
    revision: int

    def __str__(self) -> str:
        return f"{self.author}-{self.revision}"

    @classmethod
    def parse(cls, text: str) -> Stamp:
        """The stamp of a text that `str` made; ValueError for anything else."""
        author, _, revision = text.partition("-")
        return cls(int(author), int(revision))
