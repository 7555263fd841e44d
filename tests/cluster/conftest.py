"""Makes the components importable, by the tests and by the workers, and gives every test a clean slate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("cluster", deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    import seen

    seen.forget()
    yield
    seen.forget()
