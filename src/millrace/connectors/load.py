"""The spout of load patterns: an open-loop stream whose rate, and whose hot keys, change over time."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from millrace.api.component import Component
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.patterns import Pattern, burst, constant, ramp, sine, step, trace
from millrace.connectors.settings import setting
from millrace.connectors.shifting_keys import ShiftingKeys

LOAD_FIELDS = ["task", "position", "key", "due"]
LOAD_KEYS = 1024
LEAST_SHIFT = 0.001  # seconds
PATTERNS = ("constant", "step", "ramp", "sine", "burst", "trace")


class LoadSpout(GeneratorSpout):
    """Emits numbered tuples with keys at the times of a load pattern. A tuple has the index of its task, its position there,
    its key, and the time at which it is due, in seconds since the begin of the timetable.

    | config | meaning |
    | --- | --- |
    | `pattern` | `constant` (default), `step`, `ramp`, `sine`, `burst` or `trace`; see below |
    | `rate`, `peak` | tuples per second of the whole component |
    | `at`, `until`, `period`, `length` | times of the pattern, in seconds |
    | `trace` | a CSV file with the columns seconds and rate |
    | `begin` | begin of the timetable in seconds since the epoch; 0 makes all tuples due at once |
    | `keys` | number of keys, which are whole numbers from 0 on (default 1,024) |
    | `zipf` | exponent of Zipf's law; 0, the default, makes all keys equally frequent |
    | `shift` | seconds after which other keys are the most frequent; absent: they stay |
    | `seed` | seed of the keys (default 1) |
    | `limit`, `burst` | as for GeneratorSpout |

    | pattern | rate |
    | --- | --- |
    | `constant` | `rate` |
    | `step` | `rate`, then `peak` from `at` on; `rate` again from `until` on, if that is set |
    | `ramp` | `rate` until `at`, then in a straight line to `peak` at `until`, and `peak` from then on |
    | `sine` | `rate` on average, `peak` at a quarter of each `period`, as far below after three quarters |
    | `burst` | `rate`; in each `period`, from its second `at` (default 0) on, `peak` for `length` seconds |
    | `trace` | each rate of the file until the time of its next line; repeated after `period`, if that is set |

    A tuple and its due time depend only on its number, so a replay has the same ones. The stream is open-loop: a pause, a slow
    engine, a move or a change of parallelism do not move the timetable, tuples are late instead. `lag` tells how many. Without
    a `begin`, the timetable of a task, or of a split, begins with its first call; one that is restored, after the loss of its
    worker, a roll-back or in a resumed run, continues with the tuple that it seeks.
    """

    outputs: ClassVar[list[str]] = LOAD_FIELDS

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.pattern = pattern_of(self, storm_conf)
        limit = setting(self, storm_conf, "limit", int, None, least=0)
        if self.pattern.total < math.inf:
            limit = min(math.ceil(self.pattern.total), math.inf if limit is None else limit)
        super().initialize({**storm_conf, "limit": limit, "rate": None}, context)
        self._paced = True
        self._keys = keys_of(self, storm_conf)
        begin = setting(self, storm_conf, "begin", float, None)
        if begin is not None:
            self._pace_start = self.clock() - (self.wall_clock() - begin)

    def generate(self, position: int) -> tuple[Any, ...]:
        number = self.ordinal(position)
        due = self.pattern.time_of(number)
        return self.task_index, position, self._keys.key_of(number, due), due

    def seek(self, position: int) -> None:
        began = self._pace_start
        super().seek(position)
        self._pace_start = began

    def activate(self) -> None:
        """Continue by the same timetable."""

    def deactivate(self) -> None:
        """The timetable goes on."""

    def _due_at(self, position: int) -> float:
        assert self._pace_start is not None
        return self._pace_start + self.pattern.time_of(self.ordinal(position))

    def _due(self) -> int:
        if self.exhausted:
            return self._next_position
        if self._pace_start is None:
            sought = self._next_position
            self._pace_start = self.clock() - (self.pattern.time_of(self.ordinal(sought)) if sought else 0.0)
        now = self.clock()
        due = self.share(self.pattern.due_count(now - self._pace_start))
        if self._end is not None:
            due = min(due, self._end)
        self._report_behind(now, due)
        return due


def pattern_of(component: Component, conf: dict[str, Any]) -> Pattern:
    """The load pattern in a component's settings."""
    def seconds(key: str, *default: Any) -> Any:
        return setting(component, conf, key, float, *default, least=0)

    name = setting(component, conf, "pattern", str, PATTERNS[0], choices=PATTERNS)
    if name == "trace":
        return trace(setting(component, conf, "trace", str), seconds("period", None))
    rate = setting(component, conf, "rate", float, least=0)
    if name == "constant":
        return constant(rate)
    peak = setting(component, conf, "peak", float, least=0)
    match name:
        case "step":
            return step(rate, peak, seconds("at"), seconds("until", None))
        case "ramp":
            return ramp(rate, peak, seconds("at", 0.0), seconds("until"))
        case "sine":
            return sine(rate, peak, seconds("period"))
        case _:
            return burst(rate, peak, seconds("period"), seconds("length"), seconds("at", 0.0))


def keys_of(component: Component, conf: dict[str, Any]) -> ShiftingKeys:
    """The keys in a component's settings."""
    return ShiftingKeys(setting(component, conf, "keys", int, LOAD_KEYS, least=1),
                        setting(component, conf, "zipf", float, 0.0, least=0),
                        setting(component, conf, "shift", float, None, least=LEAST_SHIFT),
                        setting(component, conf, "seed", int, 1))
