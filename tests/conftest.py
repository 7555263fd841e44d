"""For all tests: nothing is written to the home directory of whoever runs them, no other cluster of theirs is seen, and
servers are started once, when the first test asks for them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

from support.servers.postgres import PostgresServer, running_postgres
from support.servers.redis_server import RedisServer, running_redis
from support.servers.zookeeper import ZooKeeperServer, running_zookeeper

# Times are never asserted, and the examples are the same every time: a test fails for what was changed, not for its luck.
# `millrace test -- tests --hypothesis-profile=explore` looks at new ones.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("millrace", settings.get_profile("explore"), derandomize=True)
settings.load_profile("millrace")
pytest.register_assert_rewrite("support.suites.history")  # its assertions are used by tests of two folders


@pytest.fixture(autouse=True, scope="session")
def _own_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The history's default database, and the sockets of masters; processes that tests start inherit them."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="desk") as desk:  # sockets: a short path
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_RUNTIME_DIR", desk)
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
