"""For all tests: nothing is written to the home directory of whoever runs them, and no other cluster of theirs is seen."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("history_suite")  # its assertions are used by tests of two folders


@pytest.fixture(autouse=True, scope="session")
def _own_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The history's default database, and the sockets of masters; processes that tests start inherit them."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="desk") as desk:  # sockets: a short path
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_RUNTIME_DIR", desk)
        yield
