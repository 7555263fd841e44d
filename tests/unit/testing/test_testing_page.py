"""The tests printed in docs/TESTING.md pass."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.suites.pages import DOCS, blocks, typed_in, write_file

PAGE = DOCS / "TESTING.md"
NAMES = re.findall(r"^def (test_\w+)", "".join(blocks(PAGE)), re.M)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's module, importable."""
    write_file(PAGE, "words", tmp_path, {})
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("words", None)


@pytest.mark.parametrize("name", NAMES)
def test_a_test_of_the_page_passes(name: str, words: None) -> None:
    (block,) = [block for block in typed_in(PAGE, {}) if f"def {name}()" in block]
    names: dict[str, Any] = {"__name__": "test_words"}
    exec(block, names)
    names[name]()


def test_every_block_of_the_page_is_run() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 6
    assert all("def test_" in block for block in typed_in(PAGE, {}))
