"""Event-time windows: the number of events per device and minute, emitted once when the minute is over. On either engine.

    mkdir -p /tmp/events
    printf '%s\\n' 12,a 30,b 55,a 75,a 300,a > /tmp/events/0001.csv       # seconds,device
    ./millrace run examples.windows:PerMinute                            # or with --engine microbatch
    cat /tmp/minutes/*.jsonl                                             # from another terminal, some seconds later

Set EVENTS and MINUTES to use other paths. A second run needs `--resume` or `--fresh`; with `--fresh` remove /tmp/minutes first.

Times are those in the events. A tick closes a window when the newest event is LATENESS seconds past its end; later events of
that window are only counted in `late`. Everything is keyed state: it survives its worker, and moves when the bolt is scaled.
Each task derives the time from its own keys, so a task whose devices all fall silent keeps its last windows open.
"""

import os

from millrace import Bolt, CounterState, Grouping, State, Topology, Tuple
from millrace.connectors.files import FileSpout
from millrace.connectors.sinks import JsonLinesSink

EVENTS = os.environ.get("EVENTS", "/tmp/events/*.csv")
MINUTES = os.environ.get("MINUTES", "/tmp/minutes")
WINDOW = 60  # seconds
LATENESS = 120  # seconds that an event may be behind the newest one


class Parse(Bolt):
    """Parses SECONDS,DEVICE; any other line raises and goes to the dead letters."""

    outputs = ["at", "device"]

    def process(self, tup: Tuple) -> None:
        at, device = tup.values.line.split(",")
        self.emit([int(at), device])


class Windows(Bolt):
    outputs = ["device", "start", "events"]
    config = {"topology.tick.tuple.freq.secs": 1}
    windows = State(default=dict)  # device -> start of an open window -> events in it
    newest = CounterState()  # the latest time of its events
    closed = CounterState()  # end of its last closed window
    late = CounterState()

    def process(self, tup: Tuple) -> None:
        at, device = tup.values
        start = at - at % WINDOW
        if start < self.closed[device]:
            self.late[device] += 1
            return
        counts = self.windows[device]
        counts[start] = counts.get(start, 0) + 1
        self.newest[device] = max(at, self.newest[device])

    def process_tick(self, tup: Tuple) -> None:
        """Closes windows. On the microbatch engine the tick comes at the end of a batch, after all its events."""
        passed = max(self.newest.values(), default=0) - LATENESS
        for device, counts in list(self.windows.items()):
            for start in sorted(start for start in counts if start + WINDOW <= passed):
                self._close(device, start)

    def _close(self, device: str, start: int) -> None:
        self.emit([device, start, self.windows[device].pop(start)])
        self.closed[device] = start + WINDOW
        if not self.windows[device]:
            del self.windows[device]


class PerMinute(Topology):
    config = {"topology.guarantee": "exactly-once"}  # the rows of a tick and the state behind them are committed together
    lines = FileSpout.spec(config={"path": EVENTS, "follow": True})
    parse = Parse.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE})
    windows = Windows.spec(inputs={parse: Grouping.fields("device")}, par=2)
    minutes = JsonLinesSink.spec(inputs={windows: Grouping.SHUFFLE}, config={"path": MINUTES})
