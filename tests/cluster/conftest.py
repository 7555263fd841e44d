"""Makes the components importable by tests and workers, and clears their records before and after each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    import seen

    seen.forget()
    yield
    seen.forget()
