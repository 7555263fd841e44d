"""The job every engine in `./millrace bench wordcount` does, and its input.

Lines of ten words, drawn evenly from a fixed vocabulary, are split and counted: a running count for each word.
The input is a function of its seed and nothing else, so every engine, in whatever process or environment it
runs, gets the same lines. Only the standard library is imported: this file is also read by scripts that run
where Millrace itself is not installed.
"""

from __future__ import annotations

import random
from functools import lru_cache

WORDS_PER_LINE = 10
VOCABULARY_SIZE = 2_000

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


def lines(seed: int, count: int) -> list[str]:
    """Return `count` lines of ten words; the same ones for the same seed.

    A longer list begins with the shorter one, so a run may be lengthened without changing its start.
    """
    if count < 0:
        raise ValueError(f"count is {count}: a number of lines cannot be negative")
    words = _vocabulary(VOCABULARY_SIZE)
    choices = random.Random(seed).choices
    return [" ".join(choices(words, k=WORDS_PER_LINE)) for _ in range(count)]


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
