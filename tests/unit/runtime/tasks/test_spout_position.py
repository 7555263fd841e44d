"""The times at which the positions of a spout were first sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.runtime.meters import REWOUND
from millrace.runtime.tasks.spout_position import SENT_SECONDS, SentPositions

steps = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.floats(0.0, 0.2)), min_size=1, max_size=60)


@given(steps, st.lists(st.integers(0, 59), max_size=4))
def test_positions_keep_the_time_of_their_first_sending(chunks: list[tuple[int, int, float]], rewinds: list[int]) -> None:
    """(tuples, distance of their positions, seconds since the last chunk). After some chunks the spout goes back."""
    sent, now, position, truth = SentPositions(), 10.0, 0, dict[int, float]()
    for number, (tuples, distance, seconds) in enumerate(chunks):
        now += seconds
        if number in rewinds:
            position = min(truth, default=0)
        positions = range(position, position + tuples * distance, distance)
        for each in positions:
            if not truth or each > max(truth):
                truth[each] = now
        sent.note(positions[0], positions[-1], now)
        position = positions[-1] + 1
    assert sent.reached == max(truth) + 1 and sent.sent_at(sent.reached) == REWOUND
    for each, time in truth.items():
        assert time - SENT_SECONDS <= sent.sent_at(each) <= time


def test_the_times_of_positions_that_another_worker_has_sent_are_not_known() -> None:
    sent = SentPositions()
    sent.note(0, 9, 1.0)
    sent.reached = 20  # by a report of another worker
    assert sent.sent_at(5) == 1.0 and sent.sent_at(15) == REWOUND
    sent.note(20, 29, 5.0)
    assert sent.reached == 30 and sent.sent_at(25) == 5.0 and sent.sent_at(15) == REWOUND
