"""The steps of the hot path, in Python and compiled."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest


@pytest.fixture(scope="session", params=["plain", "compiled"])
def steps(request: pytest.FixtureRequest) -> ModuleType:
    """Each implementation of the steps in turn."""
    name = f"millrace.hotpath.{request.param}"
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"{name} was not built: there was no C compiler when Millrace was installed")
