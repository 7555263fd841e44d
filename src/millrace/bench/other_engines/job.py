"""The word count that every engine runs, and its input.

Lines of ten words, drawn evenly from a fixed vocabulary, are split and counted: a running count for each word.
The input depends on its seed alone. It is written to files once, and every engine reads those files. Only the standard
library is imported: scripts that run where Millrace is not installed import this file, too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path

WORDS_PER_LINE = 10
VOCABULARY_SIZE = 2_000
FILES = 8
LINES_PER_FILE = 125_000
_SHAPE = "lines_per_file"  # a file beside the others that holds this number

# The vocabulary must not change with the seed of a run: two runs then differ in order only.
_VOCABULARY_SEED = 20_230
_ONSETS = ("b", "br", "c", "ch", "d", "f", "g", "gr", "h", "l", "m", "n", "p", "pl", "r", "s", "st", "t", "th", "v", "w")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_CODAS = ("", "", "", "d", "l", "m", "n", "r", "s", "t", "nd", "ck")
# How many syllables a word has, as in running text: most words are short.
_SYLLABLES = (1, 2, 3)
_SYLLABLE_WEIGHTS = (42, 48, 10)


def vocabulary(n: int = VOCABULARY_SIZE) -> list[str]:
    """Return `n` distinct lower-case words, about six letters long on average; the same ones each time."""
    return list(_vocabulary(n))


def lines(seed: int, number: int) -> list[str]:
    """Return `number` lines of ten words; the same ones for the same seed. A longer list begins with the shorter one."""
    if number < 0:
        raise ValueError(f"number is {number}: a number of lines cannot be negative")
    words = _vocabulary(VOCABULARY_SIZE)
    choices = random.Random(seed).choices
    return [" ".join(choices(words, k=WORDS_PER_LINE)) for _ in range(number)]


@lru_cache(maxsize=4)
def _vocabulary(n: int) -> tuple[str, ...]:
    rng = random.Random(_VOCABULARY_SEED)
    # A dict keeps the order of drawing, which a set would not.
    words: dict[str, None] = {}
    while len(words) < n:
        syllables = rng.choices(_SYLLABLES, weights=_SYLLABLE_WEIGHTS)[0]
        words["".join(_syllable(rng) for _ in range(syllables))] = None
    return tuple(words)


def _syllable(rng: random.Random) -> str:
    return rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Text files with the same number of lines each, read by every engine.

    A reader reads its files in order, repeatedly: reader `i` of `n` reads files i, i + n, i + 2n and so on. So the number of
    lines alone tells which lines were read, and the right counts can be computed without any engine.
    """

    files: tuple[Path, ...]
    lines_per_file: int

    @classmethod
    def at(cls, directory: Path) -> Corpus:
        """Open a corpus that `write_corpus` has written."""
        return cls(tuple(sorted(directory.glob("lines-*.txt"))), int((directory / _SHAPE).read_text()))

    def file(self, number: int) -> Path:
        """Return the file that is read as number `number` of an endless sequence."""
        return self.files[number % len(self.files)]

    def lines(self, reader: int = 0, readers: int = 1, first: int = 0) -> Iterator[str]:
        """Yield the lines of one reader without end, from its line number `first` on. A whole file is read at a time."""
        skipped, offset = divmod(first, self.lines_per_file)
        for number in count(reader + skipped * readers, readers):
            yield from self.file(number).read_text().splitlines()[offset:]
            offset = 0

    def counts(self, lines_read: Sequence[int]) -> Counter[str]:
        """Count the words that `len(lines_read)` readers have read; `lines_read` has the number of lines of each."""
        times: Counter[int] = Counter()
        total: Counter[str] = Counter()
        for reader, read in enumerate(lines_read):
            whole, rest = divmod(read, self.lines_per_file)
            visited = [reader + turn * len(lines_read) for turn in range(whole + 1)]
            times.update(number % len(self.files) for number in visited[:-1])
            total.update(" ".join(self.file(visited[-1]).read_text().splitlines()[:rest]).split())
        return total + self.counts_in(times.elements())

    def counts_in(self, numbers: Iterable[int]) -> Counter[str]:
        """Count the words of whole files, by their numbers in the endless sequence."""
        total: Counter[str] = Counter()
        for number, repeats in Counter(number % len(self.files) for number in numbers).items():
            words = Counter(self.file(number).read_text().split())
            total.update({word: occurrences * repeats for word, occurrences in words.items()})
        return total


def write_corpus(directory: Path, seed: int, files: int = FILES, lines_per_file: int = LINES_PER_FILE) -> Corpus:
    """Write the lines of `seed` into `files` files; no line of one file is copied to another."""
    directory.mkdir(parents=True, exist_ok=True)
    content = lines(seed, files * lines_per_file)
    for number in range(files):
        part = content[number * lines_per_file : (number + 1) * lines_per_file]
        (directory / f"lines-{number:03d}.txt").write_text("\n".join(part) + "\n")
    (directory / _SHAPE).write_text(str(lines_per_file))
    return Corpus.at(directory)
