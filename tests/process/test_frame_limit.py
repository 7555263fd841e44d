"""Tuples larger than a frame between real processes: each is a dead letter that arrives, and nothing else is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from millrace.config import FRAME_LIMIT
from millrace.model.graph import graph_of
from support.processes.forked import ForkedCluster
from support.rows import rows_in
from support.topologies.audited import SECONDS
from support.topologies.swelling import FRAME_BYTES, LARGE, LIMIT, SwellingLine


def names_in(directory: Path) -> Counter[tuple[str, int]]:
    return Counter((row["who"], row["n"]) for row in rows_in(directory))


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_tuple_larger_than_a_frame_is_a_dead_letter(tmp_path: Path, guarantee: str) -> None:
    """The two tasks of `named` are in different workers, so one of them gets everything by reference."""
    small = {("copy 0", n) for n in range(LIMIT) if n not in LARGE} | {("copy 1", n) for n in range(LIMIT) if n not in LARGE}
    letters = {("letter", n) for n in LARGE}
    with ForkedCluster(2, settings={FRAME_LIMIT.key: FRAME_BYTES}) as cluster:
        config = {"path": str(tmp_path), "limit": LIMIT, "topology.guarantee": guarantee,
                  "topology.checkpoint.interval.secs": 0.2}
        cluster.master.submit(graph_of(SwellingLine, config=config), False)
        assert cluster.master.wait_until(lambda: names_in(tmp_path).keys() >= small | letters, SECONDS), names_in(tmp_path)
        cluster.master.kill("swellingline", wait=SECONDS)
        assert cluster.master.wait_until(lambda: not cluster.master.state.topologies, SECONDS)
    copies = {row for row in names_in(tmp_path) if row[1] in LARGE} - letters
    assert len(copies) == len(LARGE) and len({who for who, _ in copies}) == 1
    if guarantee == "exactly-once":
        assert set(names_in(tmp_path).values()) == {1}
