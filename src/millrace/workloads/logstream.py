"""Log Stream: a web server's log, classified by rules, indexed and counted, into two databases.

    LogLines → Rules → Indexer → LogDatabase (table log_index)
                     → RuleCounter → LogDatabase (table rule_counts)
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import State
from millrace.api.sink import TwoPhaseSink
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.settings import setting
from millrace.connectors.sinks import JsonLinesSink
from millrace.connectors.sql import SqlSink
from millrace.workloads.wordcount import vocabulary

TABLE_REQUESTS = 4096
REQUESTS_PER_SECOND = 100  # in the log's own time
FIRST_SECOND = 1_700_000_000
SLOW_MILLIS = 1000


class LoggedRequest(msgspec.Struct, frozen=True):
    """One line of the log, as JSON."""

    number: int
    second: int
    client: str
    method: str
    path: str
    status: int
    size: int
    millis: int


class LogLines(GeneratorSpout):
    """Emits lines of JSON; request n is n / 100 seconds after the first.

    | config | meaning |
    | --- | --- |
    | `seed` | seed of the random requests (default 1) |

    and the settings of GeneratorSpout.
    """

    outputs: ClassVar[list[str]] = ["line"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        # Number and time differ in every line, so the table holds the rest of the line.
        self._table = [msgspec.json.encode(request).decode().partition('"client"')[2]
                       for request in draw_requests(setting(self, storm_conf, "seed", int, 1))]

    def generate(self, position: int) -> tuple[Any, ...]:
        number = position * self.parallelism + self.task_index
        second = FIRST_SECOND + number // REQUESTS_PER_SECOND
        return (f'{{"number":{number},"second":{second},"client"{self._table[number % TABLE_REQUESTS]}',)


def draw_requests(seed: int) -> list[LoggedRequest]:
    """The table: 4,096 requests, with number and time 0."""
    rng = random.Random(f"requests {seed}")
    words = vocabulary(200, seed)
    pages = ["/" + "/".join(rng.choices(words, k=rng.randint(1, 3))) for _ in range(300)]
    clients = [f"10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(1, 255)}" for _ in range(500)]
    return [LoggedRequest(number=0, second=0, client=rng.choice(clients),
                          method=rng.choices(("GET", "POST", "PUT", "DELETE"), (80, 15, 3, 2))[0],
                          path=rng.choice(pages) if rng.random() > 0.02 else "/admin/" + rng.choice(words),
                          status=rng.choices((200, 304, 404, 403, 500, 503), (80, 8, 6, 2, 3, 1))[0],
                          size=int(rng.paretovariate(1.2) * 500), millis=int(rng.lognormvariate(3.5, 1.2)))
            for _ in range(TABLE_REQUESTS)]


RULES: tuple[tuple[str, Callable[[LoggedRequest], bool]], ...] = (
    ("server-error", lambda request: request.status >= 500),
    ("intrusion", lambda request: request.path.startswith("/admin/") and request.status in (403, 404)),
    ("client-error", lambda request: request.status >= 400),
    ("slow", lambda request: request.millis > SLOW_MILLIS),
    ("change", lambda request: request.method != "GET"),
)


def judge(request: LoggedRequest) -> str:
    """The name of the first matching rule."""
    return next((name for name, fits in RULES if fits(request)), "normal")


class Rules(Bolt):
    """Parses the JSON and classifies each request."""

    outputs: ClassVar[list[str]] = ["number", "second", "client", "path", "status", "rule"]

    def __init__(self) -> None:
        super().__init__()
        self._decode = msgspec.json.Decoder(LoggedRequest).decode

    def process(self, tup: Tuple) -> None:
        request = self._decode(tup.values[0])
        self.emit((request.number, request.second, request.client, request.path, request.status, judge(request)))


class Indexer(Bolt):
    """Emits an index entry for each part of the path of every request that is not normal."""

    outputs: ClassVar[list[str]] = ["term", "number", "rule"]

    def process(self, tup: Tuple) -> None:
        number, _, _, path, _, rule = tup.values
        if rule != "normal":
            for term in path.strip("/").split("/"):
                self.emit((term, number, rule))


class RuleCounter(Bolt):
    """Counts the requests of each rule in each minute; emits a minute's count at every request."""

    outputs: ClassVar[list[str]] = ["minute", "rule", "count"]
    counts = State(default=dict)  # rule -> minute -> requests

    def process(self, tup: Tuple) -> None:
        minute, rule = tup.values[1] // 60, tup.values[5]
        minutes = self.counts[rule]
        minutes[minute] = count = minutes.get(minute, 0) + 1
        self.emit((minute, rule, count))


class LogDatabase(TwoPhaseSink):
    """Writes to a database or to files, through the matching sink.

    | config | meaning |
    | --- | --- |
    | `store` | `sql` (default) or `jsonl` |
    | `table` | name of the table, or of the directory of files |
    | `path` | directory of the SQLite file (one for each table), or of the directories of files |
    | `url` | another database, for `sql`; `path` is then not needed |
    """

    blocking: ClassVar[bool] = True

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        store = setting(self, storm_conf, "store", str, "sql", choices=("sql", "jsonl"))
        table = setting(self, storm_conf, "table", str)
        self._inner: SqlSink | JsonLinesSink = SqlSink() if store == "sql" else JsonLinesSink()
        for name in ("topology_name", "component_name", "task_index", "logger", "exactly_once"):
            setattr(self._inner, name, getattr(self, name))
        if store == "jsonl":
            storm_conf = {**storm_conf, "path": str(Path(setting(self, storm_conf, "path", str)) / table)}
        elif storm_conf.get("url") is None:
            directory = Path(setting(self, storm_conf, "path", str)).absolute()
            directory.mkdir(parents=True, exist_ok=True)
            storm_conf = {**storm_conf, "url": f"sqlite:///{directory / table}.db"}
        self._sink().initialize(storm_conf, context)

    def process_rows(self, rows: list[Any]) -> None:
        self._sink().process_rows(rows)

    def prepare(self, wave: int) -> None:
        self._sink().prepare(wave)

    def commit(self, wave: int) -> None:
        self._sink().commit(wave)

    def recover(self, wave: int, epoch: int) -> None:
        self._sink().recover(wave, epoch)

    def close(self) -> None:
        self._sink().close()

    def _sink(self) -> SqlSink | JsonLinesSink:
        """The inner sink with the current epoch: an engine may reuse the instance in another epoch."""
        self._inner.epoch, self._inner.parallelism = self.epoch, self.parallelism
        return self._inner


_STORE = {"path": str(Path(tempfile.gettempdir()) / "millrace-logstream")}


class LogStream(Topology):
    """The version in the T-Storm paper: 5 + 5 + 5 + 5 + 2 + 2 tasks. Set `path` in the topology's config."""

    config: ClassVar[dict[str, Any]] = _STORE
    lines = LogLines.spec(par=5)
    rules = Rules.spec(inputs={lines: Grouping.SHUFFLE}, par=5)
    indexer = Indexer.spec(inputs={rules: Grouping.SHUFFLE}, par=5)
    counter = RuleCounter.spec(inputs={rules: Grouping.fields("rule")}, par=5)
    index_store = LogDatabase.spec(inputs={indexer: Grouping.SHUFFLE}, par=2, config={"table": "log_index"})
    count_store = LogDatabase.spec(inputs={counter: Grouping.SHUFFLE}, par=2, config={"table": "rule_counts"})


class SmallLogStream(Topology):
    """A version for few cores: one task of each."""

    config: ClassVar[dict[str, Any]] = _STORE
    lines = LogLines.spec()
    rules = Rules.spec(inputs={lines: Grouping.SHUFFLE})
    indexer = Indexer.spec(inputs={rules: Grouping.SHUFFLE})
    counter = RuleCounter.spec(inputs={rules: Grouping.fields("rule")})
    index_store = LogDatabase.spec(inputs={indexer: Grouping.SHUFFLE}, config={"table": "log_index"})
    count_store = LogDatabase.spec(inputs={counter: Grouping.SHUFFLE}, config={"table": "rule_counts"})
