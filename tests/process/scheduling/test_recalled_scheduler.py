"""A new master takes over the last one's scheduler, also a user's own, which another process first tries out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.config import CHECKPOINTS, HISTORY
from millrace.master.load.history import History
from millrace.master.service import Master
from millrace.model.graph import graph_of
from millrace.workloads.wordcount import WordCount
from support.topologies.audited import SECONDS


@contextmanager
def started(directory: Path) -> Iterator[Master]:
    master = Master("takeover", settings={HISTORY.key: f"sqlite:///{directory}/history.db", CHECKPOINTS.key: str(directory)})
    master.start()
    try:
        yield master
    finally:
        master.stop()


def test_a_users_scheduler_is_in_use_again(tmp_path: Path) -> None:
    with started(tmp_path) as first:
        first.set_scheduler("support.user_schedulers:Tuned", {"least": 3}, {"period": 77.0})
    with started(tmp_path) as second:
        second.submit(graph_of(WordCount))
        assert second.wait_until(lambda: any("and is again" in event["text"] for event in second.events), SECONDS)
        settings = second.call(second.scheduling.settings)
        assert (settings["scheduler"], settings["parameters"]["least"], settings["policy"]["period"]) == (
            "support.user_schedulers:Tuned", 3, 77.0)


def test_a_users_scheduler_that_is_gone_is_reported(tmp_path: Path) -> None:
    history = History(f"sqlite:///{tmp_path}/history.db", "takeover", 3600.0)
    history.record_choice({"scheduler": "support.user_schedulers:Gone", "parameters": {}, "policy": {}, "estimator": None})
    history.close()
    with started(tmp_path) as master:
        master.submit(graph_of(WordCount))
        assert master.wait_until(lambda: any("and is not now" in event["text"] for event in master.events), SECONDS)
        assert "has no 'Gone'" in next(event["text"] for event in master.events if "and is not now" in event["text"])
        assert master.call(master.scheduling.settings)["scheduler"] == "off"
        assert "wordcount" in master.state.topologies
