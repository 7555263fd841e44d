"""`spark.read.format("millrace-state")`: keyed state as a table, as of the last committed checkpoint.

It is read from the checkpoint store, without the topology: of one that runs, on either engine, or ran once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from millrace.errors import CheckpointMissing, MillraceError, StoreUnreachable, UnknownName
from millrace.master.checkpoints.checkpointing import default_store
from millrace.master.checkpoints.state_queries import DEFAULT_STATE
from millrace.master.requests.client import ask, cluster_running, running_clusters
from millrace.runtime.checkpoints.checkpoints import Checkpoints
from millrace.runtime.checkpoints.store import CheckpointStore, open_store, shown_place
from millrace.spark.sources.columns import record_batch
from millrace.spark.sources.options import check_options
from millrace.state.checkpoint import Manifest, PieceRef, manifest_names
from millrace.state.task_state import stored_entries

COLUMNS = "key_group int, task int, key string, value string"
NUMBERS, NAMES = ("key_group", "task"), ("key_group", "task", "key", "value")
PARTITIONS = 16
OPTIONS = ("topology", "component", "state", "store", "cluster")
# What is no more than this is read while it is planned, and carried in the partitions: no wave can sweep it away meanwhile, and
# what does not fit is said at once. An executor's error may be long in coming: Millrace's sessions try a task again for ever.
CARRIED_BYTES = 32 << 20
TRIES = 5  # to read a checkpoint before the waves of a running topology have replaced it
ROWS_PER_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class StateOptions:
    """Which state, as the options say."""

    topology: str
    component: str
    state: str
    store: str

    @classmethod
    def of(cls, options: MutableMapping[str, str]) -> StateOptions:
        check_options("millrace-state", options, OPTIONS)
        for name in ("topology", "component"):
            if not options.get(name):
                raise MillraceError(f"format(\"millrace-state\") needs .option(\"{name}\", ...)")
        return cls(options["topology"], options["component"], options.get("state") or DEFAULT_STATE,
                   options.get("store") or _store_of(options.get("cluster"), options["topology"]))

    @property
    def label(self) -> str:
        return f"{self.topology}.{self.component}.{self.state}"

    @property
    def place(self) -> str:
        """The store as messages show it: without a password."""
        return shown_place(self.store)

    def open(self) -> CheckpointStore:
        """Makes no directory where there is none: to look is not to keep."""
        path = unquote(urlsplit(self.store).path) if self.store.startswith("file://") else self.store
        if "://" not in path and not Path(path).expanduser().is_dir():
            raise StoreUnreachable(f"the state of {self.topology!r} cannot be read: there is no checkpoint store at {path}. "
                                   "Name it with .option(\"store\", ...), or the cluster that runs or ran the topology with "
                                   ".option(\"cluster\", ...)")
        return open_store(self.store)


def _store_of(cluster: str | None, topology: str) -> str:
    """That of the running cluster, of several the one that has the topology; if none runs, where one of that name keeps it."""
    running = running_clusters()
    if cluster is None and running:
        cluster = cluster_running(topology)
    if cluster in running:
        return str(ask(cluster, "store"))
    return default_store(cluster or "default")


class StateSource(DataSource):
    """| option | meaning |
    | --- | --- |
    | `topology`, `component` | whose state |
    | `state` | which of the component's states; `state` if it declares no other |
    | `store` | the checkpoint store: a path or URI. Absent: that of the running cluster |
    | `cluster` | which Millrace, if several run here and not just one has the topology, or if none runs |
    """

    @classmethod
    def name(cls) -> str:
        return "millrace-state"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return StateReader(StateOptions.of(self.options), schema)


class Group(msgspec.Struct, frozen=True):
    """One key group: who had it, and what it is read from. `batches`: its entries, if they have been read already."""

    number: int
    task: int
    chain: list[PieceRef]
    batches: list[Any] | None = None


class StatePartition(InputPartition):
    """Some key groups."""

    def __init__(self, groups: list[Group]) -> None:
        super().__init__(None)
        self.groups = groups

    def __repr__(self) -> str:
        return f"StatePartition({[group.number for group in self.groups]})"


class StateReader(DataSourceReader):
    """Planned beside the driver, read in executors."""

    def __init__(self, options: StateOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        unknown = [field.name for field in schema if field.name not in NAMES]
        if unknown:
            raise MillraceError(f"the schema of {options.label} has {', '.join(unknown)}; the columns of a state are "
                                f"{', '.join(NAMES)}, and .schema(...) chooses among them and gives key and value a type")
        for field in schema:
            if field.name in NUMBERS and not isinstance(field.dataType, IntegerType | LongType):
                raise MillraceError(f"{field.name} is declared {field.dataType.simpleString()}; it is an int or a long")

    def partitions(self) -> Sequence[InputPartition]:
        store = self._options.open()
        try:
            return [StatePartition(groups) for groups in _shares(self._planned(store))]
        finally:
            store.close()

    def _planned(self, store: CheckpointStore) -> list[Group]:
        checkpoints = Checkpoints(store, self._options.topology)
        for _ in range(TRIES):
            manifest = _manifest(checkpoints, self._options)
            groups = _groups(manifest, self._options)
            try:
                self._check_name(checkpoints, groups)
                if manifest.size(self._options.component) <= CARRIED_BYTES:
                    groups = [msgspec.structs.replace(group, batches=list(self._batches(checkpoints, group)))
                              for group in groups]
            except CheckpointMissing:
                continue  # two waves were committed meanwhile: there is a newer one
            return groups
        raise MillraceError(f"the checkpoints of {self._options.topology!r} are replaced faster than they can be read: pause "
                            "it, or set a longer topology.checkpoint.interval.secs")

    def _check_name(self, checkpoints: Checkpoints, groups: list[Group]) -> None:
        """A state without entries is an empty table; one that nobody declared is a mistake, as far as can be seen."""
        found: set[str] = set()
        for group in groups:
            found |= self._entries(checkpoints, group).keys()
            if self._options.state in found:
                return
        if found:
            raise UnknownName(f"{self._options.component!r} of {self._options.topology!r} has nothing in a state "
                              f"{self._options.state!r}; it has {', '.join(sorted(found))}. Say which with "
                              ".option(\"state\", ...)")

    def _entries(self, checkpoints: Checkpoints, group: Group) -> dict[str, Any]:
        return stored_entries(group.number, checkpoints.read_chain(group.chain), self._options.label)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StatePartition)
        for group in partition.groups:
            yield from group.batches or ()
        left = [group for group in partition.groups if group.batches is None]
        if left:
            yield from self._read(left)

    def _read(self, groups: list[Group]) -> Iterator[pa.RecordBatch]:
        store = self._options.open()
        try:
            checkpoints = Checkpoints(store, self._options.topology)
            for group in groups:
                yield from self._batches(checkpoints, group)
        except CheckpointMissing as error:
            raise MillraceError(f"the checkpoint of {self._options.topology!r} was replaced by newer ones while its "
                                f"{self._options.component!r} was read: pause the topology, or set a longer "
                                f"topology.checkpoint.interval.secs ({error})") from None
        finally:
            store.close()

    def _live(self, checkpoints: Checkpoints, group: Group) -> list[tuple[Any, Any]]:
        """Keys and values of those that have not expired."""
        values, dues = self._entries(checkpoints, group).get(self._options.state, ({}, {}))
        now = time.time()
        return [(key, value) for key, value in values.items() if key not in dues or dues[key] > now]

    def _batches(self, checkpoints: Checkpoints, group: Group) -> Iterator[pa.RecordBatch]:
        entries = self._live(checkpoints, group)
        for begin in range(0, len(entries), ROWS_PER_BATCH):
            some = entries[begin : begin + ROWS_PER_BATCH]
            columns = {"key_group": [group.number] * len(some), "task": [group.task] * len(some),
                       "key": [key for key, _ in some], "value": [value for _, value in some]}
            yield record_batch([self._shown(field.dataType, columns[field.name]) for field in self._schema], self._schema,
                               self._options.label)

    @staticmethod
    def _shown(kind: Any, values: list[Any]) -> list[Any]:
        return [as_text(value) for value in values] if isinstance(kind, StringType) else [_listed(value) for value in values]


def as_text(value: Any) -> str | None:
    """Texts as they are, None as null, everything else as JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else msgspec.json.encode(_jsonable(value)).decode()
    return text.encode("utf-8", "backslashreplace").decode()


def _jsonable(value: Any) -> Any:
    """With texts for the keys of dicts and for numbers beyond 64 bits, which JSON would not have."""
    if isinstance(value, dict):
        return {as_text(key) if key is not None else "null": _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_jsonable(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _listed(value: Any) -> Any:
    """A tuple or set is an array to Spark."""
    return list(value) if isinstance(value, tuple | set | frozenset) else value


def _manifest(checkpoints: Checkpoints, options: StateOptions) -> Manifest:
    manifest = checkpoints.latest()
    if manifest is None:
        there = ", ".join(_topologies(checkpoints.store)) or "none"
        raise UnknownName(f"there is no checkpoint of a topology {options.topology!r} in {options.place}; there are of: {there}"
                          ". Has its first wave been committed?")
    return manifest


def _topologies(store: CheckpointStore) -> list[str]:
    return sorted({unquote(name.partition("/")[0]) for name in manifest_names(store.names(""))})


def _groups(manifest: Manifest, options: StateOptions) -> list[Group]:
    """The key groups of the component, by number."""
    if options.component not in manifest.parallelism:
        raise UnknownName(f"topology {options.topology!r} has no component {options.component!r}; it has "
                          f"{', '.join(sorted(manifest.parallelism))}")
    found = [Group(number, record.index, chain) for record in manifest.records if record.component == options.component
             for number, chain in record.chains.items()]
    keyed = sorted({record.component for record in manifest.records if record.chains})
    if not found and keyed:
        raise UnknownName(f"{options.component!r} of {options.topology!r} has no state by key at wave {manifest.wave}; those "
                          f"that have: {', '.join(keyed)}")
    return sorted(found, key=lambda group: group.number)


def _shares(groups: list[Group]) -> list[list[Group]]:
    """A few neighbouring groups for each partition; at least one partition, be it empty."""
    size = max(1, -(-len(groups) // PARTITIONS))
    return [groups[begin : begin + size] for begin in range(0, len(groups), size)] or [[]]
