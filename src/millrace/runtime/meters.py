"""Meters of a task: counters and latency histograms, always on, updated once per chunk and never per tuple."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from hdrh.histogram import HdrHistogram

from millrace.control.migrations import BUCKET_SECONDS, Bucket, Flow
from millrace.model.load import Percentiles

COUNTERS = ("emitted", "merged", "transferred", "executed", "acked", "failed", "dead_letters", "replayed", "expired", "gaps",
            "repeats", "errors")
SECONDS = ("cpu_seconds", "busy_seconds", "blocked_seconds")
LATENCIES = ("execute_latency", "process_latency", "complete_latency")
HOP_LATENCIES = ("wire_latency", "inbox_latency", "chunk_latency")
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9, "max": 100.0}  # by field of `Percentiles`
RESTORED, REWOUND = -1.0, -2.0  # origins of tuples that are not known: saved with a wave; sent by an earlier incarnation
BUCKETS_KEPT = 1200  # of sinks that cannot be reported
LONGEST_US = 3_600_000_000  # an hour; longer latencies are recorded as an hour


class LatencyHistogram:
    """Latencies in microseconds, to two significant digits. Made on first use: most tasks need only some of them."""

    __slots__ = ("_histogram",)

    def __init__(self) -> None:
        self._histogram: HdrHistogram | None = None

    def record(self, seconds: float, count: int = 1) -> None:
        if self._histogram is None:
            self._histogram = HdrHistogram(1, LONGEST_US, 2)
        self._histogram.record_value(min(max(1, int(seconds * 1e6)), LONGEST_US), count)

    def take(self) -> str:
        """The histogram since the last `take`, encoded; an empty string if nothing was recorded."""
        if self._histogram is None or self._histogram.get_total_count() == 0:
            return ""
        encoded: str = self._histogram.encode().decode("ascii")
        self._histogram = None  # emptying it would cost eight times as much as making a new one
        return encoded

    def merge(self, encoded: str) -> None:
        if encoded:
            if self._histogram is None:
                self._histogram = HdrHistogram(1, LONGEST_US, 2)
            self._histogram.decode_and_add(encoded)

    def add(self, other: LatencyHistogram) -> None:
        if other._histogram is not None:
            if self._histogram is None:
                self._histogram = HdrHistogram(1, LONGEST_US, 2)
            self._histogram.add(other._histogram)

    def percentile_ms(self, percentile: float) -> float | None:
        """None while nothing has been recorded."""
        if self._histogram is None or self._histogram.get_total_count() == 0:
            return None
        return float(self._histogram.get_value_at_percentile(percentile)) / 1000

    def percentiles_ms(self) -> Percentiles | None:
        """The percentiles that users see; None while nothing has been recorded."""
        if self._histogram is None or self._histogram.get_total_count() == 0:
            return None
        values = self._histogram.get_percentile_to_value_dict(list(PERCENTILES.values()))
        return Percentiles(**{name: values[percentile] / 1000 for name, percentile in PERCENTILES.items()})

    def mean_ms(self) -> float | None:
        """None while nothing has been recorded."""
        if self._histogram is None or self._histogram.get_total_count() == 0:
            return None
        return float(self._histogram.get_mean_value()) / 1000

    @property
    def count(self) -> int:
        return int(self._histogram.get_total_count()) if self._histogram is not None else 0


class HopMeters:
    """The parts of the way of chunks from one component to this task: on the wire, in the inbox, and in user code, which takes
    them whole. Those from the same worker are on no wire."""

    __slots__ = HOP_LATENCIES

    def __init__(self) -> None:
        self.wire_latency, self.inbox_latency, self.chunk_latency = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()

    def report(self) -> dict[str, str]:
        return {name: getattr(self, name).take() for name in HOP_LATENCIES}


class Meters:
    """The meters of one task. Counters only rise; latencies are since the last report."""

    __slots__ = (*COUNTERS, *SECONDS, *LATENCIES, "custom", "hops", "outbox_latency")

    def __init__(self) -> None:
        self.emitted = self.merged = self.transferred = self.executed = self.acked = self.failed = 0
        self.dead_letters = self.replayed = self.expired = self.gaps = self.repeats = self.errors = 0
        self.cpu_seconds = self.busy_seconds = self.blocked_seconds = 0.0
        self.execute_latency, self.process_latency = LatencyHistogram(), LatencyHistogram()
        self.complete_latency = LatencyHistogram()
        self.outbox_latency = LatencyHistogram()  # from the emit of a chunk's first tuple until the chunk is sent
        self.hops: dict[str, HopMeters] = {}  # by the component that chunks come from
        self.custom: dict[str, Any] = {}

    def hop(self, component: str) -> HopMeters:
        """The meters of what comes from a component."""
        meters = self.hops.get(component)
        if meters is None:
            meters = self.hops[component] = HopMeters()
        return meters

    def report(self) -> dict[str, Any]:
        """Plain data for the master. Taking it empties the latency histograms."""
        out: dict[str, Any] = {name: getattr(self, name) for name in COUNTERS + SECONDS}
        for name in LATENCIES:
            out[name] = getattr(self, name).take()
        out["outbox_latency"] = self.outbox_latency.take()
        out["hops"] = {component: hop.report() for component, hop in list(self.hops.items())}  # a thread may add one
        if self.custom:
            out["custom"] = dict(self.custom)
        return out


class TopologyMeters:
    """The meters of one topology in a worker, over all its tasks, including those that leave or have ended. Only the worker's
    loop uses them."""

    __slots__ = ("_buckets", "_ended")

    def __init__(self) -> None:
        self._buckets: list[list[Any]] = []  # as `Bucket`, in order
        self._ended = Flow()

    def sink_processed(self, now: float, tuples: int, latency: float, origin: float = 0.0) -> None:
        """Count a chunk that a sink has processed. `origin`: as in `Lineage`."""
        number, buckets = int(now / BUCKET_SECONDS), self._buckets
        entered = origin if origin > 0 else -inf if origin == RESTORED else now - latency
        if buckets and buckets[-1][0] == number:
            bucket = buckets[-1]
            bucket[1] += tuples
            bucket[2] += tuples * latency
            bucket[3] = max(bucket[3], latency)
            bucket[4] = min(bucket[4], entered)
        else:
            bucket = [number, tuples, tuples * latency, latency, entered, 0, 0]
            buckets.append(bucket)
            del buckets[:-BUCKETS_KEPT]
        if origin and origin != RESTORED:
            bucket[5] += tuples
            bucket[6] += tuples if origin == REWOUND else 0

    def take_buckets(self) -> list[Bucket]:
        """The buckets since the last call, in order. The last one may go on in the next call's first."""
        taken, self._buckets = self._buckets, []
        return [Bucket(*bucket) for bucket in taken]

    def task_ended(self, meters: Meters) -> None:
        """Keep the counters of a task that ends."""
        self._ended = self.flow([meters])

    def flow(self, running: Iterable[Meters]) -> Flow:
        """The counters of all tasks, with those that run."""
        lost, repeated, replayed = self._ended
        for meters in running:
            lost, repeated, replayed = lost + meters.gaps, repeated + meters.repeats, replayed + meters.replayed
        return Flow(lost, repeated, replayed)
