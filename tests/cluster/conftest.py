"""Clears the records of the components before and after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cluster import records


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    records.forget()
    yield
    records.forget()
