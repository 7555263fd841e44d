"""Every setting: key, default, unit and description. docs/settings.md is generated from this table.

Topology settings belong in `Topology.config` (or a component's `config`), with Storm's names; engine settings are passed to
`millrace run` and to the engines.
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
RESIDENT, MICROBATCH = "resident", "microbatch"  # the engines


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `low` is the minimum; `choices`, if any, are the values allowed."""

    key: str
    default: Any
    about: str
    low: float | None = None
    choices: tuple[str, ...] = ()
    whole: bool = False
    text: bool = False

    def of(self, conf: Mapping[str, Any]) -> Any:
        """The checked value in `conf`, or the default."""
        value = conf.get(self.key)
        if value is None:
            return self.default
        if self.choices:
            if value not in self.choices:
                raise TopologyError(f"{self.key} = {value!r} is not one of {', '.join(self.choices)}")
            return value
        if self.text:
            if not isinstance(value, str) or not value:
                raise TopologyError(f"{self.key} = {value!r} must be a non-empty string")
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TopologyError(f"{self.key} = {value!r} ({type(value).__name__}) must be a number")
        if self.low is not None and not value >= self.low:  # `not >=` refuses NaN too
            raise TopologyError(f"{self.key} = {value!r} is below the minimum, {self.low:g}")
        if value in (math.inf, -math.inf):
            raise TopologyError(f"{self.key} = {value!r} must be finite")
        if (self.whole or isinstance(self.default, int)) and value != int(value):
            raise TopologyError(f"{self.key} = {value!r} must be a whole number")
        if isinstance(self.default, int | float):
            return type(self.default)(value)
        return int(value) if self.whole else value


GUARANTEE = Setting("topology.guarantee", AT_LEAST_ONCE, choices=(AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE),
                    about="at-most-once: no tracking. at-least-once: a tuple that a spout emits with an id is tracked until "
                          "its whole tuple tree is processed, or else failed back to the spout. exactly-once: after a failure "
                          "the topology rolls back to the last committed wave; spouts must be replayable.")
WORKERS = Setting("topology.workers", None, low=1, whole=True,
                  about="Maximum number of workers in the initial placement. Unset: all workers. A load-aware scheduler may "
                        "later use another number.")
ACKERS = Setting("topology.acker.executors", None, low=0, whole=True,
                 about="Number of acker tasks. Unset: one for each worker that the topology can use, at most one "
                       "for each of its tasks. 0 means at-most-once.")
MESSAGE_TIMEOUT = Setting("topology.message.timeout.secs", 30.0, low=0.01,
                          about="Seconds after which a tuple that is not fully processed is failed back to its spout.")
MAX_SPOUT_PENDING = Setting("topology.max.spout.pending", 0, low=0,
                            about="Maximum number of tuples in flight from one spout task. 0: limited only by the channels' "
                                  "windows.")
MAX_FAILS = Setting("topology.max.fails", 3, low=0,
                    about="Failures in user code after which a tuple goes to the dead letters instead of being failed again.")
TICK_SECONDS = Setting("topology.tick.tuple.freq.secs", None, low=0.001,
                       about="Seconds between tick tuples. Unset: no ticks. May be set for one component.")
KEY_GROUP_COUNT = Setting("topology.key.groups", 128, low=1,
                          about="Number of key groups of a fields grouping; at least its parallelism.")
WAVE_INTERVAL = Setting("topology.checkpoint.interval.secs", 5.0, low=0.01,
                        about="Seconds between waves (snapshots) of a topology that is exactly-once or has state.")
WAVE_TIMEOUT = Setting("topology.checkpoint.timeout.secs", 60.0, low=0.1,
                       about="Seconds without progress after which a wave that is not prepared is abandoned; the next one "
                             "covers it. Progress: a task that the wave has not reached yet processes tuples.")
WAVE_ALIGNED = Setting("topology.checkpoint.aligned.secs", 10.0, low=0,
                       about="Seconds that a wave of an exactly-once topology waits behind queued tuples. Then it overtakes "
                             "them: they are saved with the wave, and processed first after a return to it. 0: it always "
                             "waits.")
WAVE_FAILURES = Setting("topology.checkpoint.max.failures", 10, low=0,
                        about="Waves in a row that may fail before the spouts of an exactly-once topology wait; they continue "
                              "when a wave is committed. 0: they never wait.")
HANDOVER_BATCH = Setting("topology.handover.tasks", 0, low=0, whole=True,
                         about="Maximum number of tasks that are handed over at the same time; key groups that go from one "
                               "task to another count as one. 0: all tasks of a plan, except that a task and its direct "
                               "upstream never move together.")
HANDOVER_MB = Setting("topology.handover.mb", 0.0, low=0,
                      about="Maximum MB of state, as of the last wave, that are handed over at the same time; a task or key "
                            "group with more moves alone. 0: no limit.")
HANDOVER_PREPARE_LIMIT = Setting("topology.handover.prepare.secs", 60.0, low=0.1,
                                 about="Seconds that the new incarnation of a task that moves may take to start and to copy "
                                       "its state, while the old one works. Then the move is cancelled.")
HANDOVER_SWITCH_LIMIT = Setting("topology.handover.switch.secs", 10.0, low=0.1,
                                about="Seconds from the change of a task's place until its new incarnation must work. Then the "
                                      "task counts as lost. Calls of user code that take seconds do not count.")
BACKUP_BLOCKS = Setting("topology.backup.blocks", None, text=True,
                        about="Blocks of a snapshot in other workers' memory: r+c, for example 7+3 (any 7 of the 10 restore "
                              "it), or none. Unset: chosen by the number of workers.")
CHUNK_TUPLES = Setting("topology.chunk.tuples", 1000, low=1, about="Tuples in a full chunk.")
CHUNK_LINGER = Setting("topology.chunk.linger.ms", 1.0, low=0,
                       about="Milliseconds after which a spout sends a chunk that is not full.")
CHANNEL_WINDOW = Setting("topology.channel.window", 4, low=1,
                         about="Chunks in flight from one task to another before the sender waits.")
CHANNEL_SECONDS = Setting("topology.channel.secs", 0.5, low=0.001,
                          about="Seconds of work, by its measured pace, that may wait for a bolt before its senders wait; at "
                                "least one tuple from each. Less: shorter waves and latency behind a slow bolt. More: fewer, "
                                "larger chunks.")
SPOUT_WAIT = Setting("topology.spout.wait.ms", 1.0, low=0,
                     about="Milliseconds, which may be a fraction, before next_tuple is called again after it emitted nothing. "
                           "A spout that tells with `due_in` when its next tuple is due is called then.")
DATAFRAME_CHECKPOINT = Setting("topology.dataframe.checkpoint", None, text=True,
                               about="Spark's checkpoint directory or URI for the DataFrames of spouts, with a directory below "
                                     "it for each such spout; if set for one component, that spout's own directory. Unset: "
                                     "below the checkpoint store, if that is a directory.")
DATAFRAME_TRIGGER = Setting("topology.dataframe.trigger.secs", 0.0, low=0,
                            about="Seconds between the micro-batches that feed a DataFrame spout. 0: as fast as possible. May "
                                  "be set for one component.")
DATAFRAME_ACK_TIMEOUT = Setting("topology.dataframe.ack.timeout.secs", 120.0, low=1,
                                about="The query that feeds a DataFrame spout fails after this many seconds without an ack "
                                      "from the running topology. May be set for one component.")
TAP_ROWS = Setting("tap.rows", 100_000, low=1,
                   about="Maximum number of unread rows of a Tap task; a full tap applies back-pressure up to the spouts. In "
                         "an exactly-once topology, rows of the current wave do not count. May be set for one component.")
TAP_MEGABYTES = Setting("tap.mb", 64.0, low=0.001,
                        about="Maximum size of the unread rows of a Tap task, in MB; see `tap.rows`. May be set for one "
                              "component.")
BATCH_INTERVAL = Setting("topology.batch.interval.ms", 200.0, low=0,
                         about="Microbatch engine: minimum time between the starts of two batches, in milliseconds.")
BATCH_TUPLES = Setting("topology.batch.tuples", 50_000, low=1,
                       about="Microbatch engine: maximum number of tuples of one spout task in a batch.")
BATCH_SECONDS = Setting("topology.batch.fill.secs", 1.0, low=0.001,
                        about="Microbatch engine: maximum time for which a spout task fills a batch, in seconds.")
COMPONENT_CPU = Setting("topology.component.cpu.pcore.percent", None, low=0,
                        about="CPU that a task is expected to need, in percent of a core; schedulers count on it until the "
                              "CPU is measured. May be set for one component. Unset: unknown; resource-aware assumes 10.")
COMPONENT_MEMORY = Setting("topology.component.resources.onheap.memory.mb", None, low=0,
                           about="Memory that a task is expected to need, in MB; schedulers count on it until the memory is "
                                 "measured. May be set for one component. Unset: unknown; resource-aware assumes 128.")

HEARTBEAT_INTERVAL = Setting("worker.heartbeat.interval.secs", 0.25, low=0.01, about="Seconds between a worker's heartbeats.")
HEARTBEAT_TIMEOUT = Setting("worker.heartbeat.timeout.secs", 1.5, low=0.05,
                            about="Seconds of silence after which a worker is considered lost and its tasks are placed "
                                  "elsewhere. The death of a process on the master's own host is noticed at once.")
SILENCE_LIMIT = Setting("worker.silence.limit.secs", 60.0, low=0.05,
                        about="Maximum seconds of silence of a worker whose process still answers on the network: its code "
                              "holds the interpreter lock. The limit starts at four heartbeat timeouts and doubles each time a "
                              "worker has needed more than half of it.")
CALL_LIMIT = Setting("worker.call.limit.secs", 0.0, low=0,
                     about="Seconds that user code may take for one chunk, on a worker's loop or on the thread of a blocking "
                           "task, before the worker is restarted; also to start a task, and at a wave. 0: no limit; `status` "
                           "warns after 10 seconds.")
SPIN_MICROS = Setting("worker.spin.micros", 0.0, low=0,
                      about="Microseconds for which an idle worker looks for messages before it sleeps. It then answers "
                            "sooner, and uses a whole core for as long: only for workers that have cores to spare.")
LEASE = Setting("worker.lease.secs", 10.0, low=0.1,
                about="Seconds without a message from the master after which a worker exits.")
HELLO = Setting("worker.hello.secs", 20.0, low=0.1,
                about="Seconds that a starting worker waits for the master's first answer before it exits.")
LEAVE_LIMIT = Setting("worker.leave.limit.secs", 300.0, low=0.1,
                      about="Seconds in which the tasks of a worker that is removed or restarted must be handed over, and in "
                            "which a restarted worker must have them back. If they cannot be handed over, the worker stays.")
RESTART_WAIT = Setting("worker.restart.wait.secs", 60.0, low=0.1,
                       about="Seconds that the master waits for a worker that is restarted. Then tasks that could not be "
                             "handed over, whose places it has kept, start on other workers.")
AUTO_MIN = Setting("worker.auto.min", 1, low=1, about="Fewest workers; see `worker.auto.max`.")
AUTO_MAX = Setting("worker.auto.max", 0, low=0,
                   about="Most workers: their number follows the load between `worker.auto.min` and this. 0: it changes only "
                         "by hand. `millrace workers auto` changes both while topologies run.")
AUTO_IDLE = Setting("worker.auto.idle.secs", 60.0, low=0,
                    about="Seconds that a worker must have had no tasks, or little to do, before it is given back.")
AUTO_COOLDOWN = Setting("worker.auto.cooldown.secs", 60.0, low=0,
                        about="Seconds after workers were added or given back in which their number is not changed again.")
AUTO_SHARE = Setting("worker.auto.share", 0.5, low=0,
                     about="Highest load of a worker, as a share of a core or of its loop's time, at which it may hand its "
                           "tasks over and be given back; the others must not exceed it then either. 0: only workers without "
                           "tasks are given back. At most 0.8.")
RECOVERY_GRACE = Setting("recovery.grace.secs", 0.5, low=0,
                         about="Seconds after the loss of a worker before unfinished tuples are replayed.")
FRAME_LIMIT = Setting("wire.frame.limit.bytes", 64 * 2**20, low=4096, about="Largest frame that is sent or accepted.")

NODE_BY = Setting("worker.node.by", "host", choices=("host", "executor"),
                  about="Definition of a node: a host, or a single Spark executor. The environment variable MILLRACE_NODE "
                        "overrides the host's name.")
SPREAD_WAIT = Setting("worker.spread.wait.secs", 3.0, low=0,
                      about="Seconds that the start waits for another Spark executor once there is room for all workers, so "
                            "that they are spread over all hosts. Not used where Spark's settings say how many executors "
                            "there will be.")
LINKS_FILE = Setting("cluster.links.file", None, text=True,
                     about="File with the costs of traffic between nodes: zones of nodes, and costs between zones or nodes, in "
                           "TOML or JSON. What it says comes before measurements.")
LINKS_PERIOD = Setting("cluster.links.period.secs", 10.0, low=0,
                       about="Seconds after which each node measures the link to one other node, in turn, if nodes reach each "
                             "other by TCP. 0: never.")
WORKER_POLL = Setting("worker.poll.secs", 0.25, low=0.01,
                      about="Seconds between a worker's polls of the plan store (T_W); a new plan is also announced.")
AGENT_POLL = Setting("agent.poll.secs", 1.0, low=0.01,
                     about="Seconds between an agent's polls for a newer plan (T_S); a new plan is also pushed.")
COORDINATION = Setting("coordination.store", EMBEDDED, text=True,
                       about="Store of the master's plans for the agents: embedded (in the master), or "
                             "zookeeper://USER:PASSWORD@HOST:PORT,HOST:PORT, with TLS zookeepers://...?ca=FILE.")
CHECKPOINTS = Setting("checkpoint.store", None, text=True,
                      about="Store of snapshots: a directory shared by all hosts, a URI of a file system (hdfs://, s3://, "
                            "gs://), or redis://:PASSWORD@HOST:PORT, with TLS rediss://...?ssl_ca_certs=FILE. Unset: a "
                            "directory in the user's state directory, which is sufficient on one host.")
LOCAL_COPIES = Setting("checkpoint.local.mb", None, low=0,
                       about="Maximum size of a worker's local copies of its tasks' snapshots, in MB; after a failure, tasks "
                             "that survive are restored from these. 0: no copies. Unset: 1024, or 0 if the checkpoint store is "
                             "a directory and all workers are on the driver's host.")
STORE_TIMEOUT = Setting("checkpoint.store.timeout.secs", 60.0, low=0.1,
                        about="Seconds after which a call of the master to the checkpoint store is reported as hanging; a "
                              "submission that waits for it is refused.")
BACKUP_MEMORY = Setting("backup.memory.mb", 1024.0, low=1,
                        about="Maximum memory of a worker for fragments of other workers' snapshots, in MB.")
LOAD_PERIOD = Setting("load.period.secs", 20.0, low=0.1,
                      about="Seconds in each window of the load monitor; no longer than the scheduler's period.")
OTHER_PROCESSES = Setting("load.other.processes", "deduct", choices=("deduct", "ignore"),
                          about="CPU that processes other than workers use on a node: deducted from the node's capacity, or "
                                "ignored.")
HISTORY = Setting("history.url", None, text=True,
                  about="Database for loads and decisions, as an SQLAlchemy URL; `none` disables the history. Unset: an "
                        "SQLite file in the user's state directory.")
HISTORY_RETENTION = Setting("history.retention.hours", 168.0, low=0.01, about="Hours after which history is deleted.")
MIGRATION_STABLE = Setting("migration.stable.secs", 60.0, low=0.1,
                           about="Seconds that the output rate must stay within 20 % of the rate before a migration, for the "
                                 "record of migrations to call it stable.")
MIGRATION_WATCH = Setting("migration.watch.secs", 120.0, low=1.0,
                          about="Seconds after a migration within which its output must become stable and replayed tuples must "
                                "leave, to be in its record.")

LOG_LEVEL = Setting("worker.log.level", "info", choices=("debug", "info", "warning", "error"),
                    about="Minimum level of component log messages written to the worker's stderr.")

SETTINGS = [value for value in list(globals().values()) if isinstance(value, Setting)]
_OF_TOPOLOGIES = ("topology.", "tap.")
TOPOLOGY_SETTINGS = {setting.key: setting for setting in SETTINGS if setting.key.startswith(_OF_TOPOLOGIES)}
ENGINE_SETTINGS = {setting.key: setting for setting in SETTINGS if setting.key not in TOPOLOGY_SETTINGS}
# Settings of Storm that are used here but are neither numbers nor choices.
OTHER_KEYS = {"topology.name", "topology.debug", "topology.environment"}


def check_engine_settings(settings: Mapping[str, Any]) -> None:
    """Raises `MillraceError` for an unknown engine setting or an invalid value."""
    for key in settings:
        if key in TOPOLOGY_SETTINGS:
            raise MillraceError(f"{key}: a setting of a topology, not of the engine. Pass it with --set, in Python with "
                                "submit(config={...}) or in the topology's own config")
        if key not in ENGINE_SETTINGS:
            hint = _hint(key, ENGINE_SETTINGS) or f"; the settings are {', '.join(ENGINE_SETTINGS)}"
            raise MillraceError(f"{key}: not a setting of the engine{hint}. All are in docs/settings.md")
        ENGINE_SETTINGS[key].of(settings)


def check_topology_config(config: Mapping[str, Any]) -> None:
    """Raises `TopologyError` for a setting that would be ignored silently. Other keys belong to the user."""
    for key in config:
        if (key in ENGINE_SETTINGS or str(key).startswith("topology.")) and (reason := _without_effect(key)):
            raise TopologyError(reason)


def settings_without_effect(conf: Iterable[str]) -> list[str]:
    """The problems of keys that look like a setting of a topology but are not."""
    return [reason for key in sorted(conf) if (reason := _without_effect(key))]


def _without_effect(key: str) -> str:
    if key in ENGINE_SETTINGS:
        return f"{key}: a setting of the engine, not of a topology. Pass it with --set, in Python with settings={{...}}"
    known = TOPOLOGY_SETTINGS.keys() | OTHER_KEYS
    prefixes = tuple({setting.key.partition(".")[0] + "." for setting in SETTINGS})
    if key in known or not str(key).startswith(prefixes):
        return ""
    return f"{key}: there is no such setting{_hint(key, known)}. All are in docs/settings.md"


def _hint(key: str, known: Iterable[str]) -> str:
    near = get_close_matches(str(key), sorted(known), 1, cutoff=0.8)
    return f"; did you mean {near[0]}" if near else ""
