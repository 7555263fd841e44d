"""Fixtures and settings of all tests: no test depends on how the run was started, writes to the user's home directory or
sees another cluster of the user's; servers start once, when the first test asks for them."""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

from millrace.bench import results
from support import surroundings
from support.examples import EXPLORE, MAIN
from support.order import sort_longest_first
from support.patience import wait_for_late_heartbeats
from support.servers.needed import PROPERTY, NotTested, summary
from support.servers.postgres import PostgresServer, running_postgres
from support.servers.redis_server import RedisServer, running_redis
from support.servers.zookeeper import ZooKeeperServer, running_zookeeper

surroundings.normalize()
wait_for_late_heartbeats()

# The main run uses the same few examples every time, so that a failure is due to a change. `millrace test --explore MINUTES`
# uses the profile "explore", with twice as many examples and new seeds; it ignores saved examples, so that the seed alone
# repeats a failure.
settings.register_profile("explore", deadline=None, database=None, print_blob=True, max_examples=EXPLORE,
                          suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("millrace", settings.get_profile("explore"), derandomize=True, max_examples=MAIN)
settings.load_profile("millrace")
pytest.register_assert_rewrite("support.suites.history", "support.topologies.audited")  # tests use their assertions


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sort_longest_first(items)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking at modules and tests, which stay to the end: simulations take a tenth less."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, NotTested):
        report.user_properties.append((PROPERTY, [call.excinfo.value.claim, call.excinfo.value.need]))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    line = summary(terminalreporter.getreports("skipped"))
    if line:
        terminalreporter.write_line(line, yellow=True)


@pytest.fixture(autouse=True, scope="session")
def _private_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The history's default database and the sockets of masters, which processes that tests start inherit, and the results of
    benchmarks: `bench page` must not show the figures of a test."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="run") as runtime:  # sockets: a short path
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_RUNTIME_DIR", runtime)
        patch.setattr(results, "RESULTS", tmp_path_factory.mktemp("bench-results"))
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
