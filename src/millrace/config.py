"""Every setting: key, default, unit and one sentence. docs/settings.md is made from this table.

Topology settings live in `Topology.config` (or a component's `config`) under the names Storm's users know; engine
settings are given to `millrace run` and to the engines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from millrace.errors import MillraceError, TopologyError

AT_MOST_ONCE = "at-most-once"
AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"
EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `low` is the least value allowed; `choices`, if any, are all the values allowed."""

    key: str
    default: Any
    about: str
    low: float | None = None
    choices: tuple[str, ...] = ()
    whole: bool = False
    text: bool = False

    def of(self, conf: Mapping[str, Any]) -> Any:
        """The value in `conf`, checked, or the default."""
        value = conf.get(self.key)
        if value is None:
            return self.default
        if self.choices:
            if value not in self.choices:
                raise TopologyError(f"{self.key} = {value!r} is not one of {', '.join(self.choices)}")
            return value
        if self.text:
            if not isinstance(value, str) or not value:
                raise TopologyError(f"{self.key} = {value!r} must be a text that is not empty")
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TopologyError(f"{self.key} = {value!r} ({type(value).__name__}) must be a number")
        if self.low is not None and not value >= self.low:  # not a number is not at least anything either
            raise TopologyError(f"{self.key} = {value!r} is below the least value, {self.low:g}")
        if value in (math.inf, -math.inf):
            raise TopologyError(f"{self.key} = {value!r} must be finite")
        if (self.whole or isinstance(self.default, int)) and value != int(value):
            raise TopologyError(f"{self.key} = {value!r} must be a whole number")
        if isinstance(self.default, int | float):
            return type(self.default)(value)
        return int(value) if self.whole else value


GUARANTEE = Setting("topology.guarantee", AT_LEAST_ONCE, choices=(AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE),
                    about="at-most-once: no tracking. at-least-once: what a spout emits with an id is tracked until all "
                          "that came of it is processed, and failed back to the spout otherwise. exactly-once: after a "
                          "failure everything goes back to the last committed wave; spouts must be replayable.")
WORKERS = Setting("topology.workers", None, low=1, whole=True,
                  about="Most workers that the topology's tasks are spread over at first. Unset: all there are. A scheduler "
                        "that goes by the load later uses as many as it needs.")
ACKERS = Setting("topology.acker.executors", None, low=0, whole=True,
                 about="Number of acker tasks. Unset: one for each worker. 0 means at-most-once.")
MESSAGE_TIMEOUT = Setting("topology.message.timeout.secs", 30.0, low=0.01,
                          about="Seconds after which a tuple that is not fully processed is failed back to its spout.")
MAX_SPOUT_PENDING = Setting("topology.max.spout.pending", 0, low=0,
                            about="Most tuples in flight from one spout task. 0 means no limit but the channels' windows.")
MAX_FAILS = Setting("topology.max.fails", 3, low=0,
                    about="Failures in user code after which a tuple goes to the dead letters instead of being failed again.")
TICK_SECONDS = Setting("topology.tick.tuple.freq.secs", None, low=0.001,
                       about="Seconds between tick tuples. Unset: no ticks. May be set for one component.")
KEY_GROUP_COUNT = Setting("topology.key.groups", 128, low=1,
                          about="Shares into which the key space of a fields grouping is cut; at least its parallelism.")
WAVE_INTERVAL = Setting("topology.checkpoint.interval.secs", 5.0, low=0.01,
                        about="Seconds between the waves that snapshot a topology that is exactly-once or has state.")
WAVE_TIMEOUT = Setting("topology.checkpoint.timeout.secs", 60.0, low=0.1,
                       about="Seconds after which a wave that not every task has prepared is given up; the next one "
                             "covers it.")
BACKUP_BLOCKS = Setting("topology.backup.blocks", None, text=True,
                        about="Blocks into which a snapshot is cut for other workers' memory: r+c, for example 7+3 (any 7 "
                              "of the 10 restore it), or none. Unset: by the number of workers.")
CHUNK_TUPLES = Setting("topology.chunk.tuples", 1000, low=1, about="A chunk closes when it holds this many tuples.")
CHUNK_LINGER = Setting("topology.chunk.linger.ms", 1.0, low=0,
                       about="Milliseconds after which a spout's chunk closes though it is not full.")
CHANNEL_WINDOW = Setting("topology.channel.window", 4, low=1,
                         about="Chunks that may be on their way from one task to another before the sender waits.")
SPOUT_WAIT = Setting("topology.spout.wait.ms", 1.0, low=0,
                     about="Milliseconds before next_tuple is called again after it emitted nothing.")
DATAFRAME_CHECKPOINT = Setting("topology.frame.checkpoint", None, text=True,
                               about="Directory or URI in which Spark records how far the DataFrames of spouts have been read, "
                                     "with one directory below it for each such spout. Set for one component, it is that "
                                     "spout's own directory. Unset: below the checkpoint store, if that is a directory.")
DATAFRAME_TRIGGER = Setting("topology.frame.trigger.secs", 0.0, low=0,
                            about="Seconds between the micro-batches that feed a DataFrame spout. 0 means as fast as they can. "
                                  "May be set for one component.")
DATAFRAME_ACK_TIMEOUT = Setting("topology.frame.ack.timeout.secs", 120.0, low=1,
                                about="Seconds without any ack from a running topology after which the query that feeds a "
                                      "DataFrame spout fails. May be set for one component.")
TAP_ROWS = Setting("tap.rows", 100_000, low=1,
                   about="Most rows that a task of a Tap keeps for its reader; then its senders wait, up to the spouts. "
                         "Exactly-once, rows of the wave under way do not count. May be set for one component.")
TAP_MEGABYTES = Setting("tap.mb", 64.0, low=0.001,
                        about="Most megabytes of rows that a task of a Tap keeps for its reader, as `tap.rows` bounds their "
                              "number. May be set for one component.")
BATCH_INTERVAL = Setting("topology.batch.interval.ms", 200.0, low=0,
                         about="Microbatch engine: least milliseconds from the beginning of one batch to that of the next.")
BATCH_TUPLES = Setting("topology.batch.tuples", 50_000, low=1,
                       about="Microbatch engine: tuples after which a spout task's part of a batch is closed.")
BATCH_SECONDS = Setting("topology.batch.fill.secs", 1.0, low=0.001,
                        about="Microbatch engine: seconds after which a spout task's part of a batch is closed though it has "
                              "more.")
COMPONENT_CPU = Setting("topology.component.cpu.pcore.percent", 10.0, low=0,
                        about="CPU that a task asks the resource-aware scheduler for while none is measured, in percent of a "
                              "core. May be set for one component.")
COMPONENT_MEMORY = Setting("topology.component.resources.onheap.memory.mb", 128.0, low=0,
                           about="Memory in MB that a task asks the resource-aware scheduler for while none is measured. May "
                                 "be set for one component.")

HEARTBEAT_INTERVAL = Setting("worker.heartbeat.interval.secs", 0.25, low=0.01, about="Seconds between a worker's heartbeats.")
HEARTBEAT_TIMEOUT = Setting("worker.heartbeat.timeout.secs", 1.5, low=0.05,
                            about="Seconds of silence after which a worker is given up and its tasks are placed elsewhere. "
                                  "The death of a process on the master's own host is noticed at once.")
LEASE = Setting("worker.lease.secs", 10.0, low=0.1,
                about="Seconds without a word from the master after which a worker ends itself.")
HELLO = Setting("worker.hello.secs", 20.0, low=0.1,
                about="Seconds that a worker that starts waits for the master's first answer before it gives up.")
RECOVERY_GRACE = Setting("recovery.grace.secs", 0.5, low=0,
                         about="Seconds after the loss of a worker before what is still unfinished is replayed.")
DRAIN_LIMIT = Setting("task.drain.limit.secs", 2.0, low=0,
                      about="Least time that a task which moved away stays to work off what still comes for it; after "
                            "that it ends when its inbox is empty.")
FRAME_LIMIT = Setting("wire.frame.limit.bytes", 64 * 2**20, low=4096, about="Largest frame that is sent or accepted.")

NODE_BY = Setting("worker.node.by", "host", choices=("host", "executor"),
                  about="What counts as a node: a host, or every Spark executor by itself. The environment variable "
                        "MILLRACE_NODE names the host otherwise.")
WORKER_POLL = Setting("worker.poll.secs", 0.25, low=0.01,
                      about="Seconds between a worker's looks at the plan store (T_W); a new plan is also announced.")
AGENT_POLL = Setting("agent.poll.secs", 1.0, low=0.01,
                     about="Seconds between an agent's looks for a newer plan (T_S); a new plan is also pushed.")
COORDINATION = Setting("coordination.store", EMBEDDED, text=True,
                       about="Where the master writes plans for the agents: embedded (in the master), or "
                             "zookeeper://HOST:PORT,HOST:PORT.")
CHECKPOINTS = Setting("checkpoint.store", None, text=True,
                      about="Where snapshots are kept: a directory that all hosts share, a URI of a file system (hdfs://, "
                            "s3://, gs://), or redis://HOST:PORT. Unset: a directory in the user's state directory, "
                            "which is enough on one host.")
BACKUP_MEMORY = Setting("backup.memory.mb", 1024.0, low=1,
                        about="Most memory that a worker gives to other workers' snapshots.")
LOAD_PERIOD = Setting("load.period.secs", 20.0, low=0.1,
                      about="Seconds in each window of the load monitor; no longer than the scheduler's period.")
HISTORY = Setting("history.url", None, text=True,
                  about="Database for loads and decisions, as an SQLAlchemy URL; none keeps nothing. Unset: an SQLite file "
                        "in the user's state directory.")
HISTORY_RETENTION = Setting("history.retention.hours", 168.0, low=0.01, about="Hours after which history is deleted.")

LOG_LEVEL = Setting("worker.log.level", "info", choices=("debug", "info", "warning", "error"),
                    about="Least level of what components log that is written to the worker's stderr.")

SETTINGS = [value for value in list(globals().values()) if isinstance(value, Setting)]
_OF_TOPOLOGIES = ("topology.", "tap.")
TOPOLOGY_SETTINGS = {setting.key: setting for setting in SETTINGS if setting.key.startswith(_OF_TOPOLOGIES)}
ENGINE_SETTINGS = {setting.key: setting for setting in SETTINGS if setting.key not in TOPOLOGY_SETTINGS}
# Of Storm's, used here without being numbers or choices.
OTHER_KEYS = {"topology.name", "topology.debug", "topology.environment"}


def check_engine_settings(given: Mapping[str, Any]) -> None:
    """`MillraceError` for one that is not a setting of the engine, or has a value that it cannot have."""
    for key in given:
        if key in TOPOLOGY_SETTINGS:
            raise MillraceError(f"{key}: a setting of a topology, not of the engine. Give it with --config, in Python with "
                                "submit(config={...}) or in the topology's own config")
        if key not in ENGINE_SETTINGS:
            meant = _meant(key, ENGINE_SETTINGS) or f"; those are {', '.join(ENGINE_SETTINGS)}"
            raise MillraceError(f"{key}: not a setting of the engine{meant}. All are in docs/settings.md")
        ENGINE_SETTINGS[key].of(given)


def check_topology_config(given: Mapping[str, Any]) -> None:
    """`TopologyError` for a setting that would be passed over in silence. Other keys are the users' own."""
    for key in given:
        if (key in ENGINE_SETTINGS or str(key).startswith("topology.")) and (reason := _without_effect(key)):
            raise TopologyError(reason)


def settings_without_effect(conf: Iterable[str]) -> list[str]:
    """Of keys that look like a setting of a topology and are none: what is wrong with them."""
    return [reason for key in sorted(conf) if (reason := _without_effect(key))]


def _without_effect(key: str) -> str:
    if key in ENGINE_SETTINGS:
        return f"{key}: a setting of the engine, not of a topology. Give it with --set, in Python with settings={{...}}"
    known = TOPOLOGY_SETTINGS.keys() | OTHER_KEYS
    prefixes = tuple({setting.key.partition(".")[0] + "." for setting in SETTINGS})
    if key in known or not str(key).startswith(prefixes):
        return ""
    return f"{key}: there is no such setting{_meant(key, known)}. All are in docs/settings.md"


def _meant(key: str, known: Iterable[str]) -> str:
    near = get_close_matches(str(key), sorted(known), 1, cutoff=0.8)
    return f"; did you mean {near[0]}" if near else ""
