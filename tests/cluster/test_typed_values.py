"""Values of every type of Spark SQL pass through topologies of both engines unchanged, and through their state."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import zmq

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.connectors.dataframe_sink import SCHEMA, DataFrameSink
from millrace.connectors.sinks import JsonLinesSink
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.taps.messages import decode_rows, join_rows
from millrace.runtime.taps.port import TapPort, open_here
from millrace.runtime.wire.transport import Keys
from millrace.testing.local_batches import LocalBatches
from millrace.testing.local_cluster import LocalCluster, MemoryStore
from support.cluster.batch_parts import Source, start
from support.rows import rows_in
from support.suites.kept_state import own_of, state_of
from support.topologies.typed import ARROW, FIELDS, N, Typed, TypedBatchesTap, TypedSink, TypedTap, row


@pytest.fixture(autouse=True)
def port(tmp_path: Path) -> Iterator[None]:
    """A port shared by all workers, which are in one process."""
    tmp_path.chmod(0o700)
    context = zmq.Context()
    opened = TapPort(context, tmp_path / "t.ipc", "", Keys.make(), "")
    open_here(opened)
    yield
    open_here(None)
    opened.close()
    context.destroy(linger=0)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    cluster = LocalCluster(3, nodes=3, store=MemoryStore())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Typed, "clock", staticmethod(cluster.clock.now))
        patch.setattr(Typed, "wall_clock", staticmethod(cluster.clock.now))
        yield cluster


def tapped(cluster: LocalCluster) -> list[tuple[Any, ...]]:
    """The rows of all tasks of the tap, by number."""
    rows = [each for task in cluster.tasks("out") if task.started
            for each in decode_rows(join_rows(task.component.rows.read(0, 2**62, 10_000, 2**62)[1]))]
    return sorted(rows, key=lambda values: int(values[0]))


def readable(cluster: LocalCluster) -> int:
    return sum(task.component.rows.readable for task in cluster.tasks("out") if task.started)


def states(cluster: LocalCluster, component: str) -> dict[Any, Any]:
    return {key: value for task in cluster.tasks(component) for key, value in task.component.state.items()}


def test_between_workers_and_through_a_tap_and_state_after_the_loss_of_a_worker(cluster: LocalCluster) -> None:
    cluster.submit(TypedTap, config={"limit": N, "rate": 100.0, "topology.guarantee": "exactly-once",
                                     "topology.checkpoint.interval.secs": 0.02})
    cluster.run_until(lambda: 5 < readable(cluster) < N, seconds=5)
    cluster.kill(cluster.tasks("keep")[0].worker.slot)
    cluster.run_until(lambda: readable(cluster) >= N, seconds=20)
    expected = [row(number) for number in range(N)]
    assert repr(tapped(cluster)) == repr(expected)
    assert states(cluster, "keep") == {values[0]: dict(zip(FIELDS, values, strict=True)) for values in expected}
    keys = {name: FIELDS.index(name) for name in ("price", "day", "local")}
    by_key: dict[Any, list[int]] = {}
    for values in expected:
        by_key.setdefault(tuple(values[at] for at in keys.values()), []).append(values[0])
    assert {key: sorted(numbers) for key, numbers in states(cluster, "by_time").items()} == by_key


def test_arrow_batches_become_the_same_rows(cluster: LocalCluster) -> None:
    """A custom grouping turns them into rows before they are sent."""
    cluster.submit(TypedBatchesTap)
    cluster.run_until(lambda: readable(cluster) >= 3 * N, seconds=5)
    assert tapped(cluster) == sorted(3 * [row(number) for number in range(N, 2 * N)], key=lambda values: int(values[0]))
    assert states(cluster, "keep") == {number: dict(zip(FIELDS, row(number), strict=True)) for number in range(N, 2 * N)}


def run(batches: LocalBatches) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run batches to the end; return the rows that sinks kept for the driver, and the meters of all tasks."""
    rows: list[dict[str, Any]] = []
    meters: list[dict[str, Any]] = []
    while True:
        reports = batches.batch()
        done = [task.meters for report in reports for task in report.tasks]
        if not sum(each["emitted"] for each in done):
            return rows, meters
        meters += done
        for kept in own_of(open_store(batches.store), batches.graph).get("table", []):
            rows += pa.ipc.open_stream(kept).read_all().to_pylist(maps_as_pydicts="strict")


def test_through_the_shuffle_a_dataframe_sink_and_state_after_the_loss_of_a_process(tmp_path: Path) -> None:
    batches = start(TypedSink, tmp_path, processes=2, config={"limit": N})
    batches.batch()
    first = [each for kept in own_of(open_store(batches.store), batches.graph)["table"]
             for each in pa.ipc.open_stream(kept).read_all().to_pylist(maps_as_pydicts="strict")]
    batches.kill(0)
    rows, _ = run(batches)
    expected = [row(number) for number in range(N)]
    assert sorted([tuple(each.values()) for each in first + rows], key=lambda values: values[0]) == expected
    kept = state_of(open_store(batches.store), batches.graph)["keep"]["state"]
    assert repr(sorted(kept.items())) == repr([(values[0], dict(zip(FIELDS, values, strict=True))) for values in expected])


class SometimesText(Bolt):
    outputs: ClassVar[list[str]] = ["n", "price"]

    def process(self, tup: Any) -> None:
        n = tup.values[0]
        self.emit([n, "dear" if n % 50 == 7 else n])


PRICES = pa.schema([("n", pa.int64()), ("price", pa.decimal128(10, 2))])


class Misfits(Topology):
    numbers = Source.spec(par=2)
    prices = SometimesText.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    table = DataFrameSink.spec(inputs={prices: Grouping.SHUFFLE}, par=1,
                               config={SCHEMA: b64encode(PRICES.serialize().to_pybytes()).decode()})
    letters = JsonLinesSink.spec(inputs=[table.dead_letters], par=1)


def test_a_row_that_a_dataframe_sink_cannot_keep_is_a_counted_dead_letter_that_names_the_column(tmp_path: Path) -> None:
    batches = start(Misfits, tmp_path)
    rows, meters = run(batches)
    wrong = [7, 57, 107, 157]
    assert sorted(each["n"] for each in rows) == [n for n in range(200) if n not in wrong]
    assert sum(each["dead_letters"] for each in meters) == sum(each["failed"] for each in meters) == len(wrong)
    letters = sorted(rows_in(tmp_path / "out"), key=lambda letter: letter["values"])
    assert [letter["values"] for letter in letters] == [[n, "dear"] for n in wrong]
    assert all(letter["error"].startswith("EncodingError: column 'price' is declared decimal128(10, 2), but 'dear' (str) does "
                                          "not fit") for letter in letters)


def test_the_arrow_types_hold_all_values() -> None:
    assert len(ARROW) == len(row(1)) == len(FIELDS)
