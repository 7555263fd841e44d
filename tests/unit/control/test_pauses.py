from __future__ import annotations

from millrace.control.pauses import doubled_pause


def test_pauses_are_doubled_up_to_the_last() -> None:
    assert [doubled_pause(failures, 0.5, 3.0) for failures in range(6)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_no_number_of_failures_is_too_large() -> None:
    assert doubled_pause(10**9, 0.1, 30.0) == 30.0
