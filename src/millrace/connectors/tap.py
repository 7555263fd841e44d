"""A bolt that makes a stream readable from outside: `spark.readStream.format("millrace")` reads it as a DataFrame."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from millrace.api.sink import TwoPhaseSink
from millrace.api.tuple import Tuple
from millrace.config import TAP_MEGABYTES, TAP_ROWS
from millrace.errors import TopologyError
from millrace.runtime.taps.messages import join_rows, split_rows
from millrace.runtime.taps.port import TapPort, port_here
from millrace.runtime.taps.rows import TapRows

ACK_SECONDS = 0.05  # from a reader's commit to the acks
TAP_METRIC, UNREAD_METRIC = "millrace.tap", "unread"


class Tap(TwoPhaseSink):
    """Keeps its rows, numbered, until its one reader commits them.

        class WordCount(Topology):
            ...
            counts = Tap.spec(inputs={count: Grouping.SHUFFLE}, par=2)

    | config | meaning |
    | --- | --- |
    | `tap.rows`, `tap.mb` | maximum number, and MB, of unread rows of a task; then its senders wait, up to the spouts |

    At-least-once: rows can be read immediately, and are acked when the reader commits them; those of a lost task are replayed.
    Exactly-once: rows can be read when their wave is committed; rows that the reader has not committed are part of the
    snapshot, and their numbers continue after a failure. At-most-once: the rows of a lost task are lost.
    """

    only_on: ClassVar[str] = "resident"
    auto_ack: ClassVar[bool] = False
    named_rows: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.rows = TapRows()
        self._most, self._most_bytes = TAP_ROWS.default, TAP_MEGABYTES.default * 1e6
        self._port: TapPort | None = None
        self._chunk: Any = None  # the origin of the last tuple
        self._extended = True  # the tuples of that chunk may hold decimals, dates or times

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._most, self._most_bytes = TAP_ROWS.of(storm_conf), TAP_MEGABYTES.of(storm_conf) * 1e6
        self._check_inputs(context)
        self._port = port_here()
        if self.exactly_once:
            # On the instance, because only an exactly-once tap has state: with `snapshot` in the class, every topology with a
            # tap would have waves.
            vars(self)["snapshot"] = self._snapshot
        else:
            self._open()

    def _check_inputs(self, context: dict[str, Any]) -> None:
        fields = {f"{source}.{stream}": context["source->stream->fields"][source][stream]
                  for source, streams in context["source->stream->grouping"].items() for stream in streams}
        if len({len(names) for names in fields.values()}) > 1:
            widths = "; ".join(f"{stream}: {', '.join(names)}" for stream, names in fields.items())
            raise TopologyError(f"{self.component_name} (Tap) has inputs of different widths ({widths}), which do not make one "
                                "table: give each of them its own tap")

    def _open(self) -> None:
        assert self._port is not None
        self.report_metric(TAP_METRIC, msgspec.to_builtins(self._port.show(self.rows)))

    def process(self, tup: Tuple) -> None:
        if tup.origin is not self._chunk:
            self._chunk = tup.origin
            self._extended = getattr(tup.origin, "extended", True)
        if self.exactly_once:
            self.rows.add(tup.values, self._extended)
        else:
            self.rows.add_readable(tup.values, tup, self._extended)

    def close(self) -> None:
        if self._port is not None:
            self._port.hide(self.rows)

    # -- room and acks ---------------------------------------------------------------------------------------------------

    def _takes_more(self) -> bool:
        return self.rows.unread < self._most and self.rows.unread_bytes < self._most_bytes

    def _timer_seconds(self) -> float:
        return ACK_SECONDS

    def _on_timer(self) -> None:
        for tup in self.rows.take_done():
            self.ack(tup)
        self.report_metric(UNREAD_METRIC, self.rows.unread)

    # -- exactly once ----------------------------------------------------------------------------------------------------

    def _snapshot(self) -> dict[str, Any]:
        """All rows: whoever resumes from this wave can read them."""
        return {"tap": self.rows.name, "first": self.rows.first, "rows": join_rows(self.rows.all())}

    def restore(self, snapshot: Any) -> None:
        self.rows = TapRows(snapshot["tap"], snapshot["first"], split_rows(snapshot["rows"]))

    def hand_over(self) -> int:
        """Shows no more rows; all of them are in the snapshot. Returns how far they can be read."""
        if self._port is not None:
            self._port.hide(self.rows)
        return self.rows.readable

    def take_over(self, staged: int) -> None:
        self.rows.show(staged)
        self._open()

    def prepare(self, wave: int) -> None:
        self.rows.mark(wave)

    def commit(self, wave: int) -> None:
        self.rows.commit_wave(wave)

    def recover(self, wave: int, epoch: int) -> None:
        self.rows.show()
        self._open()
