"""Text files that arrive one after the other, for sources that read a directory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from millrace.workloads.wordcount import table_words

LINES = 40  # in each file


class TextFiles:
    """Text files, written one after the other, and the counts of all words in them."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.number, self.counts = directory, 0, Counter[str]()
        directory.mkdir()
        self._table = table_words(words=200)

    @property
    def lines(self) -> int:
        return self.number * LINES

    def write(self, files: int) -> None:
        for _ in range(files):
            lines = self._table[self.number * LINES : (self.number + 1) * LINES]
            part = self.directory.with_name("part")
            part.write_text("\n".join(" ".join(words) for words in lines))
            part.rename(self.directory / f"{self.number:04}.txt")  # atomic
            self.counts.update(word for words in lines for word in words)
            self.number += 1
