"""Three workers as tasks of an embedded Spark."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.errors import MillraceError
from millrace.master.requests.client import ask
from millrace.spark.engine import ResidentEngine
from millrace.workloads.wordcount import WordCount
from support.processes.family import alive, daemon_of
from support.topologies.audited import (
    SECONDS,
    AuditedStream,
    StatefulStream,
    assert_all_exact,
    assert_exact,
    assert_nothing_lost,
)

SLOTS = 3
SHARES_SPARK = True
USER_MODULE = """
    from millrace import Bolt, Grouping, Topology
    from millrace.workloads.wordcount import Lines
    from their_helper import shout

    class Shout(Bolt):
        outputs = ["text"]

        def process(self, tup):
            self.emit([shout(tup.values.line)])

    class Shouting(Topology):
        config = {"rate": 500}
        lines = Lines.spec()
        shout = Shout.spec(inputs={lines: Grouping.SHUFFLE}, par=3)
"""


@pytest.fixture(scope="module")
def user_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's directory with modules that are not installed."""
    directory = tmp_path_factory.mktemp("their_code")
    (directory / "their_topology.py").write_text(textwrap.dedent(USER_MODULE))
    (directory / "their_helper.py").write_text("def shout(text):\n    return text.upper()\n")
    sys.path.insert(0, str(directory))
    yield directory
    sys.path.remove(str(directory))


@pytest.fixture(scope="module")
def engine(user_code: Path, shared_spark: SparkSession) -> Iterator[ResidentEngine]:
    with ResidentEngine(spark=shared_spark, slots=SLOTS, name=f"local-{os.getpid()}", code=["their_topology"]) as engine:
        yield engine


def pid_of(engine: ResidentEngine, slot: int) -> int:
    return engine.master.connections[slot].hello.pid


def test_every_word_exactly_once(engine: ResidentEngine, tmp_path: Path) -> None:
    stream = StatefulStream(engine.master, tmp_path)
    stream.wave(2)
    assert stream.slots() == set(range(SLOTS))
    assert_all_exact(stream.finish_both())


def test_two_topologies_at_once(engine: ResidentEngine, tmp_path: Path) -> None:
    streams = [AuditedStream(engine.master, tmp_path / name, name, seed=seed) for name, seed in (("one", 1), ("two", 1))]
    for stream in streams:
        stream.advance(500)
    for stream in streams:
        assert_exact(stream.finish())


def test_pause_unpause_and_kill(engine: ResidentEngine) -> None:
    running = engine.submit(WordCount, "paused", {"rate": 2000})
    assert running.wait_running()
    assert engine.master.wait_until(lambda: sum(running.positions().values()) > 500, SECONDS)
    assert running.drain()
    assert running.status == "paused"
    at_rest = running.positions()
    executed = running.observed().total("count", "executed")
    assert executed == 10 * sum(at_rest.values()), "everything emitted was executed, and nothing else"
    running.unpause()
    assert running.wait_running()
    assert engine.master.wait_until(lambda: sum(running.positions().values()) > sum(at_rest.values()), SECONDS)
    running.kill(wait=5)
    assert running.wait(SECONDS)
    assert running.status == "ended"
    assert ask(engine.master.name, "status")["topologies"] == []
    assert engine.submit(WordCount, "paused", {"rate": 100}, resume=False).wait_running(), "its name is free again"
    engine.master.kill("paused", wait=0)


def test_a_worker_is_killed_and_spark_restarts_it(engine: ResidentEngine, tmp_path: Path) -> None:
    stream = AuditedStream(engine.master, tmp_path)
    stream.advance(500)
    for slot in (1, 2):
        pid = pid_of(engine, slot)
        os.kill(pid, signal.SIGKILL)
        stream.until(lambda slot=slot: slot not in stream.slots())
        stream.until(lambda slot=slot, pid=pid: slot in stream.slots() and pid_of(engine, slot) != pid)
        stream.advance(500)
    assert stream.state.losses == 2
    assert_nothing_lost(stream.finish())


def test_all_workers_are_killed_with_their_daemon(engine: ResidentEngine, tmp_path: Path) -> None:
    """Spark does not notice the death of the daemon that forks its Python workers; they must end with it."""
    stream = AuditedStream(engine.master, tmp_path)
    stream.advance(500)
    before = {slot: pid_of(engine, slot) for slot in range(SLOTS)}
    os.kill(daemon_of(before[0]), signal.SIGKILL)
    stream.until(lambda: stream.slots() == set(range(SLOTS)) and len(engine.master.connections) == SLOTS
                 and all(pid_of(engine, slot) != pid for slot, pid in before.items()))
    stream.advance(500)
    assert_nothing_lost(stream.finish())
    assert not [pid for pid in before.values() if alive(pid)]


def test_a_user_s_module_from_another_directory(engine: ResidentEngine) -> None:
    from their_topology import Shouting  # type: ignore[import-not-found]

    running = engine.submit(Shouting, "shouting")
    assert running.wait_running()
    assert engine.master.wait_until(lambda: running.observed().total("shout", "emitted") > 500, SECONDS)
    assert running.observed().errors == []
    running.kill(wait=0)
    assert running.wait(SECONDS)


def test_a_topology_defined_in_the_main_script_is_refused(engine: ResidentEngine) -> None:
    script = textwrap.dedent(USER_MODULE).replace("from their_helper import shout", "shout = str.upper")
    scope = {"__name__": "__main__"}
    main, sys.modules["__main__"] = sys.modules["__main__"], type(sys)("__main__")
    try:
        exec(script, scope)
        vars(sys.modules["__main__"]).update(scope)
        with pytest.raises(MillraceError, match=r"shout.* is defined in the script.*its own module"):
            engine.submit(scope["Shouting"], "scripted")
    finally:
        sys.modules["__main__"] = main
    assert "scripted" not in engine.master.state.topologies


def test_a_second_engine_in_one_process_is_refused(engine: ResidentEngine) -> None:
    with pytest.raises(MillraceError, match=r"Spark session already runs in this process.*Stop it.*ResidentEngine\(spark="):
        ResidentEngine("local[2]", 1, name=f"second-{os.getpid()}")
    assert engine.status()["workers"], "the first one keeps running"
