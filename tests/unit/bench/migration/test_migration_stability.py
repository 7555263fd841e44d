"""The time until a stream is stable, as `bench migration` takes it from the record of the migration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from millrace.bench.migration.cases import QUICK_SCALE, Delays
from millrace.bench.migration.driving import await_complete
from millrace.control.migration_metrics import metrics_of
from millrace.control.migrations import COMPLETED, Bucket, Migration, bucket_of

BEGAN, ENDED, UNTIL = 120.0, 122.0, 160.0


def stabilise_ms(times: Sequence[float], scale: float) -> float | None:
    """Of a migration in a stream with rows at these times."""
    buckets = [Bucket(number, rows) for number, rows in sorted(Counter(map(bucket_of, times)).items())]
    migration = Migration("grid", "handover", "asked", COMPLETED, "", 1, 2, BEGAN, BEGAN, ENDED, ())
    return metrics_of(migration, buckets, UNTIL, Delays(scale).window).stabilise_ms


def grid_rows(seed: int, rows: int = 4) -> list[float]:
    """Rows of a dataflow with 8 events in a second, each of which comes to the sink by several paths, up to 150 ms late."""
    random = Random(seed)
    return [100.0 + event / 8 + random.uniform(0.0, 0.15) for event in range(8 * 60) for _ in range(rows)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1.0 / 3, 0.1, QUICK_SCALE])
@pytest.mark.parametrize("rows", [1, 4])
def test_an_undisturbed_stream_is_stable_at_once(seed: int, scale: float, rows: int) -> None:
    stable = stabilise_ms(grid_rows(seed, rows), scale)
    assert stable is not None and stable <= 50.0


def test_a_stream_that_stood_still_is_stable_once_it_has_made_up_for_it() -> None:
    late = [max(time, 127.0 + (time - 120.0) / 2) if 120.0 <= time < 134.0 else time for time in grid_rows(1)]
    stable = stabilise_ms(late, 0.1)
    assert stable is not None and stable == pytest.approx(14_000, abs=2000)


def test_the_run_waits_for_the_record_and_no_longer_than_the_bound() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def records() -> list[dict[str, Any]]:
        return [{"id": 6, "complete": True}, {"id": 7, "complete": now[0] >= 8.0}]

    assert await_complete(records, 7, 60.0, lambda: now[0], sleep) and now[0] == 8.0
    assert not await_complete(lambda: [{"id": 7, "complete": False}], 7, 60.0, lambda: now[0], sleep) and now[0] == 68.0
    assert not await_complete(list, 7, 5.0, lambda: now[0], sleep) and now[0] == 73.0
