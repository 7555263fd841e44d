"""Event-time windows: how many events each device had in each minute, told once when the minute is over. On either engine.

    mkdir -p /tmp/events
    printf '%s\\n' 12,a 30,b 55,a 75,a 300,a > /tmp/events/0001.csv       # seconds,device
    ./millrace run examples.windows:PerMinute                            # or with --engine microbatch
    cat /tmp/minutes/*.jsonl                                             # from another terminal, some seconds later

EVENTS and MINUTES name other places. A second run needs `--resume` or `--fresh`; with `--fresh` remove /tmp/minutes first.

Times are those in the events. A window is closed by a tick when the newest event is LATENESS seconds past its end; what comes
for it after that is not counted any more but for `late`. All of it is keyed state: it survives its worker, and goes along when
the bolt is scaled. How far a task thinks time has come follows from its own keys, so a task all of whose devices
fall silent keeps its last windows open.
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
    """Anything but SECONDS,DEVICE raises: such a line goes to the dead letters."""

    outputs = ["at", "device"]

    def process(self, tup: Tuple) -> None:
        at, device = tup.values.line.split(",")
        self.emit([int(at), device])


class Windows(Bolt):
    outputs = ["device", "start", "events"]
    config = {"topology.tick.tuple.freq.secs": 1}
    windows = State(default=dict)  # of each device: start of a window that is open -> events in it
    newest = CounterState()  # the latest time of its events
    closed = CounterState()  # where its last closed window ends
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
        """At the end of a batch on the microbatch engine: all that came in it is counted before anything is closed."""
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
    config = {"topology.guarantee": "exactly-once"}  # so that a tick's rows and the state that they come from are one
    lines = FileSpout.spec(config={"path": EVENTS, "follow": True})
    parse = Parse.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE})
    windows = Windows.spec(inputs={parse: Grouping.fields("device")}, par=2)
    minutes = JsonLinesSink.spec(inputs={windows: Grouping.SHUFFLE}, config={"path": MINUTES})
