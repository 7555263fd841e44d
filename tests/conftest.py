"""For all tests: nothing is written to the home directory of whoever runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("history_suite")  # its assertions are used by tests of two folders


@pytest.fixture(autouse=True, scope="session")
def _state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The history's default database is there; processes that tests start inherit it."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    yield
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before
