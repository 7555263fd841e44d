"""Nobody loses what an earlier run has left by leaving out a flag."""

from __future__ import annotations

from datetime import datetime

import pytest

from millrace.control.submission import check_choice
from millrace.errors import TopologyError
from millrace.state.checkpoint import Manifest

AT = datetime(2026, 3, 1, 12, 30).timestamp()  # a local time, as people are told


def manifest(wave: int, at: float = AT, offsets: str = "") -> Manifest:
    return Manifest("words", wave, 5, 128, {"count": 2}, [], at, offsets=offsets)


@pytest.mark.parametrize(("found", "says"), [
    (manifest(7), "/store has checkpoints of 'words', the last of wave 7, made 2026-03-01 12:30:00. Choose "),
    (manifest(7, at=0.0), "the last of wave 7. Choose "),
    (manifest(7, offsets="1699"), "the last of wave 7, made "),  # that of a run that DataFrames feed
    (manifest(7, offsets="4-0"), "the last of batch 6 (wave 7), made "),
    (manifest(7, offsets="4-5"), "the last of batch 1 (wave 7), made "),
])
def test_what_is_there_and_what_can_be_done(found: Manifest, says: str) -> None:
    with pytest.raises(TopologyError) as refused:
        check_choice(None, found, "/store")
    assert says in str(refused.value)
    assert "Choose --resume (resume=True) to continue from there, or --fresh (resume=False) to start over" in str(refused.value)


@pytest.mark.parametrize("resume", [True, False])
def test_who_says_it_is_not_refused(resume: bool) -> None:
    check_choice(resume, manifest(7), "/store")


def test_where_there_is_nothing_nobody_need_say_it() -> None:
    check_choice(None, None, "/store")
    check_choice(None, manifest(0), "/store")  # an epoch that has begun and committed no wave
