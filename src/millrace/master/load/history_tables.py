"""The history's tables, and the conversion of windows and decisions to rows and back."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    MetaData,
    Row,
    Table,
    Text,
    func,
    insert,
    inspect,
    literal,
    select,
    text,
)

from millrace.errors import BadParameter
from millrace.model.frozen import FrozenMap
from millrace.model.graph import TaskId
from millrace.model.load import Latency, Load, TaskLoad
from millrace.model.prediction import Prediction, StationPrediction
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad

# 2: what sources offered, lags, time without credit, means of latencies; 3: predicted latencies; 4: bytes, other processes;
# 5: estimates
SCHEMA_VERSION = 5

TABLES = MetaData()
LATENCIES = ("execute", "process", "complete")
LATENCY_FIGURES = ("p50", "p99", "mean")
TASK_NUMBERS = ("emitted", "transferred", "executed", "acked", "failed", "queue_length", "queue_floor", "offered")
TASK_MEASURES = ("cpu_seconds", "busy_seconds", "blocked_seconds", "cpu_mhz", "memory_mb")
ESTIMATED = ("cpu_mhz", "memory_mb", "busy_seconds")  # smoothed, as schedulers see them
DECISION_TEXTS = ("scheduler", "trigger", "outcome", "reason")
DECISION_VALUES = ("parameters", "moved", "expected", "came_of", "times")


def _measures(*names: str) -> list[Column[Any]]:
    return [Column(name, Double) for name in names]


def _of_window(name: str, *columns: Column[Any]) -> Table:
    """A table of measurements in a window. Rows are stored in the order of their key, so no second index is needed."""
    window = Column("window_id", BigInteger, primary_key=True, autoincrement=False)
    return Table(f"millrace_{name}", TABLES, window, *columns, sqlite_with_rowid=False)


def _key(name: str, kind: Any = Text) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


schema = Table("millrace_schema", TABLES, Column("version", Integer, nullable=False))
clusters = Table("millrace_clusters", TABLES, _key("cluster"), Column("retention_seconds", Double, nullable=False))
windows = Table(
    "millrace_windows", TABLES,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("cluster", Text, nullable=False), Column("at", Double, nullable=False), Column("seconds", Double, nullable=False),
    Index("millrace_windows_by_time", "cluster", "at"))
PREDICTED = ("model_ms", "predicted_ms", "measured_ms", "error")
loads = _of_window("loads", _key("topology"), Column("seconds", Double), Column("plan_version", BigInteger),
                   *_measures("offered_rate", *PREDICTED))
task_loads = _of_window(
    "task_loads", _key("topology"), _key("component"), _key("task", Integer), Column("slot", Integer),
    Column("settling", Boolean), *(Column(name, BigInteger) for name in (*TASK_NUMBERS, "lag")), *_measures(*TASK_MEASURES),
    *_measures(*(f"estimated_{name}" for name in ESTIMATED)),
    *_measures(*(f"{name}_latency_{figure}_ms" for name in LATENCIES for figure in LATENCY_FIGURES)))
traffic = _of_window("traffic", _key("topology"), _key("source"), _key("target"),
                     *_measures("tuples", "bytes", "estimated_tuples"))
component_loads = _of_window("component_loads", _key("topology"), _key("component"),
                             *_measures("arrival_rate", "true_processing_rate", *PREDICTED))
worker_loads = _of_window("worker_loads", _key("slot", Integer), Column("node", Text),
                          *_measures("cpu_mhz", "memory_mb", "busy"),
                          Column("queue_length", BigInteger))
node_loads = _of_window("node_loads", _key("node"), *_measures("cpu_mhz", "capacity_mhz", "memory_mb", "memory_used_mb",
                                                           "others_mhz"))
decisions = Table(
    "millrace_decisions", TABLES, _key("cluster"), _key("number", BigInteger), Column("at", Double, nullable=False),
    *(Column(name, Text) for name in DECISION_TEXTS), *(Column(name, JSON(none_as_null=True)) for name in DECISION_VALUES))
migrations = Table(
    "millrace_migrations", TABLES, _key("cluster"), _key("number", BigInteger), Column("at", Double, nullable=False),
    Column("topology", Text), Column("record", JSON(none_as_null=True)))
elastic_decisions = Table(
    "millrace_elastic_decisions", TABLES, _key("cluster"), _key("number", BigInteger), Column("at", Double, nullable=False),
    Column("topology", Text), Column("record", JSON(none_as_null=True)))
scheduler_choices = Table(  # the scheduler with its settings: one row for each cluster
    "millrace_scheduler_choices", TABLES, _key("cluster"), _key("number", BigInteger), Column("at", Double, nullable=False),
    Column("topology", Text), Column("record", JSON(none_as_null=True)))
OF_WINDOW = (loads, task_loads, traffic, component_loads, worker_loads, node_loads)


@dataclass(frozen=True, slots=True)
class PastWindow:
    """A window read from the database: loads, placements, predicted latencies and smoothed loads (only what was stored of them:
    CPU, memory, busy time and traffic) by topology, workers by slot number, nodes by name."""

    at: float
    seconds: float
    loads: Mapping[str, Load] = field(default_factory=FrozenMap)
    placements: Mapping[str, Mapping[TaskId, int]] = field(default_factory=FrozenMap)
    workers: Mapping[int, WorkerLoad] = field(default_factory=FrozenMap)
    nodes: Mapping[str, NodeLoad] = field(default_factory=FrozenMap)
    predictions: Mapping[str, Mapping[str, float | None]] = field(default_factory=FrozenMap)
    estimates: Mapping[str, Load] = field(default_factory=FrozenMap)


# -- values to rows -------------------------------------------------------------------------------------------------------


def _number(value: float) -> float:
    """A plain float; NaN and infinity, which SQLite cannot store, count as 0, as for the estimators."""
    return float(value) if math.isfinite(value) else 0.0


def decision_values(decision: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """The number, and the columns: copies, since the caller may change its values later."""
    known = ("cluster", "number", "at", *DECISION_TEXTS, *DECISION_VALUES)
    number = decision.get("number")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 63:
        raise BadParameter(f"a decision's number is {number!r}: it must be a whole number from 0")
    if unknown := [name for name in decision if name not in known]:
        raise BadParameter(f"a decision has no {', '.join(map(repr, unknown))}; it has {', '.join(known)}")
    try:
        values: dict[str, Any] = {name: _plain(msgspec.to_builtins(decision[name], str_keys=True))
                                  for name in DECISION_VALUES if name in decision}
    except TypeError as error:
        raise BadParameter(f"decision {number} cannot be stored as JSON: {error}. Use plain data") from error
    for name in DECISION_TEXTS:
        if name in decision:
            values[name] = None if decision[name] is None else _plain(str(decision[name]))
    if decision.get("at") is not None:
        values["at"] = _number(float(decision["at"]))
    return number, values


def record_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a migration, as `MigrationLog` makes it, or of an elastic decision."""
    return {"at": _number(row["at"]), "topology": _plain(row["topology"]),
            "record": _plain(msgspec.to_builtins(dict(row), str_keys=True))}


def _plain(value: Any) -> Any:
    """The value without parts that a database cannot store: NaN, infinity, lone surrogates and null characters."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def add_missing_columns(connection: Connection) -> None:
    """Give tables that an earlier version has made the columns that they lack; rows that are there have no value in them."""
    quoted = connection.dialect.identifier_preparer.quote
    for table in TABLES.sorted_tables:
        known = {column["name"] for column in inspect(connection).get_columns(table.name)}
        for column in table.columns:
            if column.name not in known:
                kind = column.type.compile(connection.dialect)
                connection.execute(text(f"ALTER TABLE {quoted(table.name)} ADD COLUMN {quoted(column.name)} {kind}"))


def insert_window(connection: Connection, cluster: str, sample: WindowSample) -> None:
    row = {"cluster": cluster, "at": _number(sample.at), "seconds": _number(sample.seconds)}
    number = connection.execute(insert(windows).values(row).returning(windows.c.id)).scalar_one()
    for table, rows in _rows(sample):
        values = [{"window_id": number, **columns} for columns in rows]
        if values and connection.dialect.name == "postgresql":
            _insert_columns(connection, table, values)
        elif values:
            connection.execute(insert(table), values)


def _insert_columns(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert all rows in one statement, column by column: row by row, PostgreSQL's driver takes two to three times as long."""
    columns = [func.unnest(literal([row[name] for row in rows], ARRAY(table.c[name].type))) for name in rows[0]]
    connection.execute(insert(table).from_select(list(rows[0]), select(*columns)))


def _rows(sample: WindowSample) -> Iterator[tuple[Table, Iterable[dict[str, Any]]]]:
    for topology, load in sample.loads.items():
        plan = sample.plans.get(topology)
        prediction = sample.predictions.get(topology)
        yield loads, [{"topology": topology, "seconds": _number(load.window_seconds),
                       "plan_version": plan.version if plan else None,
                       "offered_rate": _number(prediction.offered_rate) if prediction else None, **_predicted(prediction)}]
        placement = plan.placement if plan else {}
        estimate = sample.estimates.get(topology, Load())
        yield task_loads, _task_rows(topology, load, placement, estimate)
        pairs = {**load.traffic, **estimate.traffic}
        names = {task: str(task) for pair in pairs for task in pair}
        yield traffic, ({"topology": topology, "source": names[pair[0]], "target": names[pair[1]],
                         "tuples": _number(load.traffic.get(pair, 0.0)), "bytes": _number(load.traffic_bytes.get(pair, 0.0)),
                         "estimated_tuples": _number(estimate.traffic.get(pair, 0.0))} for pair in pairs)
        yield component_loads, _component_rows(topology, load, prediction)
    yield worker_loads, ({"slot": slot, "node": worker.node, "cpu_mhz": _number(worker.cpu_mhz),
                          "memory_mb": _number(worker.memory_mb), "queue_length": int(worker.queue_length),
                          "busy": _number(worker.busy)}
                         for slot, worker in sample.workers.items())
    yield node_loads, ({"node": name, **{column: _number(getattr(node, column)) for column in NodeLoad.__slots__}}
                       for name, node in sample.nodes.items())


def _task_rows(topology: str, load: Load, placement: Mapping[TaskId, int], estimate: Load) -> Iterator[dict[str, Any]]:
    settling = set(load.settling)
    for task, measured in load.tasks.items():
        row = {"topology": topology, "component": task.component, "task": task.index, "slot": placement.get(task),
               "settling": task in settling}
        row.update((name, int(getattr(measured, name))) for name in TASK_NUMBERS)
        row["lag"] = measured.lag
        row.update((name, _number(getattr(measured, name))) for name in TASK_MEASURES)
        smoothed = estimate.tasks.get(task)
        row.update((f"estimated_{name}", None if smoothed is None else _number(getattr(smoothed, name)))
                   for name in ESTIMATED)
        for name in LATENCIES:
            latency: Latency | None = getattr(measured, f"{name}_latency_ms")
            for figure in LATENCY_FIGURES:
                value: float | None = getattr(latency, figure, None)
                row[f"{name}_latency_{figure}_ms"] = None if value is None else _number(value)
        yield row


def _predicted(prediction: Prediction | StationPrediction | None) -> dict[str, float | None]:
    return {name: getattr(prediction, name, None) for name in PREDICTED}


def _component_rows(topology: str, load: Load, prediction: Prediction | None) -> Iterator[dict[str, Any]]:
    """λ and μ of each component, computed from its part of the load: one pass over the traffic serves all components."""
    tasks: defaultdict[str, dict[TaskId, TaskLoad]] = defaultdict(dict)
    arriving: defaultdict[str, dict[tuple[TaskId, TaskId], float]] = defaultdict(dict)
    for task, measured in load.tasks.items():
        tasks[task.component][task] = measured
    for pair, tuples in load.traffic.items():
        arriving[pair[1].component][pair] = _number(tuples)
    predicted = {each.component: each for each in prediction.components} if prediction else {}
    for component, measured_tasks in tasks.items():
        part = Load(load.window_seconds, measured_tasks, arriving[component])
        true_rate = part.true_processing_rate(component)
        yield {"topology": topology, "component": component, "arrival_rate": _number(part.arrival_rate(component)),
               "true_processing_rate": None if true_rate is None else _number(true_rate),
               **_predicted(predicted.get(component))}


# -- rows to values -------------------------------------------------------------------------------------------------------


def read_windows(connection: Connection, window_rows: Iterable[Row[Any]], topology: str | None) -> list[PastWindow]:
    window_rows = list(window_rows)
    numbers = [row.id for row in window_rows]

    def rows(table: Table) -> Mapping[int, list[Row[Any]]]:
        query = select(table).where(table.c.window_id.in_(numbers)).order_by(*table.primary_key.columns)
        if topology is not None and "topology" in table.c:
            query = query.where(table.c.topology == topology)
        by_window: defaultdict[int, list[Row[Any]]] = defaultdict(list)
        for row in connection.execute(query):
            by_window[row.window_id].append(row)
        return by_window

    heads, tasks, pairs, workers, nodes = map(rows, (loads, task_loads, traffic, worker_loads, node_loads))
    return [PastWindow(
        at=row.at, seconds=row.seconds,
        loads=FrozenMap({head.topology: _read_load(head, tasks[row.id], pairs[row.id]) for head in heads[row.id]}),
        placements=FrozenMap({head.topology: _read_placement(head.topology, tasks[row.id]) for head in heads[row.id]}),
        workers=FrozenMap({worker.slot: WorkerLoad(worker.node, worker.cpu_mhz, worker.memory_mb, worker.queue_length,
                                                       worker.busy)
                           for worker in workers[row.id]}),
        nodes=FrozenMap({node.node: NodeLoad(node.cpu_mhz, node.capacity_mhz, node.memory_mb, node.memory_used_mb,
                                                node.others_mhz or 0.0)
                         for node in nodes[row.id]}),
        predictions=FrozenMap({head.topology: {name: head._mapping[name] for name in ("offered_rate", *PREDICTED)}
                               for head in heads[row.id] if head.offered_rate is not None}),
        estimates=FrozenMap({head.topology: _read_estimate(head, tasks[row.id], pairs[row.id]) for head in heads[row.id]}),
    ) for row in window_rows if topology is None or heads[row.id]]


def _read_load(head: Row[Any], tasks: Iterable[Row[Any]], pairs: Iterable[Row[Any]]) -> Load:
    task_of = functools.cache(TaskId.parse)  # names occur in many pairs
    task_rows = {TaskId(row.component, row.task): row for row in tasks if row.topology == head.topology}
    own = [row for row in pairs if row.topology == head.topology]
    return Load(
        window_seconds=head.seconds,
        tasks={task: _read_task(row) for task, row in task_rows.items()},
        traffic={(task_of(row.source), task_of(row.target)): row.tuples for row in own
                 if row.tuples or not row.estimated_tuples},  # a pair that was only estimated had no tuples
        traffic_bytes={(task_of(row.source), task_of(row.target)): row.bytes for row in own if row.bytes},
        settling=tuple(task for task, row in task_rows.items() if row.settling),
    )


def _read_estimate(head: Row[Any], tasks: Iterable[Row[Any]], pairs: Iterable[Row[Any]]) -> Load:
    task_of = functools.cache(TaskId.parse)
    return Load(
        window_seconds=head.seconds,
        tasks={TaskId(row.component, row.task): TaskLoad(**{name: row._mapping[f"estimated_{name}"] for name in ESTIMATED})
               for row in tasks if row.topology == head.topology and row.estimated_cpu_mhz is not None},
        traffic={(task_of(row.source), task_of(row.target)): row.estimated_tuples
                 for row in pairs if row.topology == head.topology and row.estimated_tuples},
    )


def _read_task(row: Row[Any]) -> TaskLoad:
    values = row._mapping
    fields: dict[str, Any] = {name: values[name] or 0 for name in TASK_NUMBERS + TASK_MEASURES}  # none: of an older version
    for name in LATENCIES:
        p50, p99, mean = (values[f"{name}_latency_{figure}_ms"] for figure in LATENCY_FIGURES)
        fields[f"{name}_latency_ms"] = None if p50 is None else Latency(p50, p99, mean)
    fields["lag"] = values["lag"]
    return TaskLoad(**fields)


def _read_placement(topology: str, tasks: Iterable[Row[Any]]) -> Mapping[TaskId, int]:
    return FrozenMap({TaskId(row.component, row.task): row.slot for row in tasks
                      if row.topology == topology and row.slot is not None})
