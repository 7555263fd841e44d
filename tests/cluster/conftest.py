"""Clears the records of the components before and after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cluster import records, wave_parts


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    records.forget()
    yield
    records.forget()


@pytest.fixture
def fresh_wave_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the records of `wave_parts`; the spout's clocks, which `wave_runs.start` replaces, are its own again
    afterwards."""
    wave_parts.forget()
    monkeypatch.setattr(wave_parts.Numbers, "clock", wave_parts.Numbers.clock)
    monkeypatch.setattr(wave_parts.Numbers, "wall_clock", wave_parts.Numbers.wall_clock)
