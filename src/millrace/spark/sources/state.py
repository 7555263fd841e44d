"""`spark.read.format("millrace-state")`: keyed state as a table, as of the last committed checkpoint.

It is read from the checkpoint store, whether the topology runs, on either engine, or has ended.
"""

from __future__ import annotations

import dataclasses
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
from millrace.redaction import shown_place
from millrace.runtime.checkpoints.store import CheckpointStore, open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.spark.sources.columns import check_columns, record_batch
from millrace.spark.sources.options import check_options
from millrace.state.checkpoint import Manifest, PieceRef, manifest_names
from millrace.state.task_state import stored_entries

COLUMNS = "key_group int, task int, key string, value string"
NUMBERS, NAMES = ("key_group", "task"), ("key_group", "task", "key", "value")
PARTITIONS = 16
OPTIONS = ("topology", "component", "state", "store", "cluster")
# State up to this size is read while the query is planned, and carried in the partitions: no wave can delete it meanwhile, and
# a value that does not fit is reported at once. An executor's error may never show: Millrace's sessions retry a task forever.
CARRIED_BYTES = 32 << 20
TRIES = 5  # to read a checkpoint before the waves of a running topology replace it
ROWS_PER_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class StateOptions:
    """The options of a query: which state to read, and from which store."""

    topology: str
    component: str
    state: str
    store: str = dataclasses.field(repr=False)  # its URL may have a password

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
        """The store as shown in messages, without a password."""
        return shown_place(self.store)

    def open(self) -> CheckpointStore:
        """Open the store. Unlike `open_store`, it does not create a missing directory."""
        path = unquote(urlsplit(self.store).path) if self.store.startswith("file://") else self.store
        if "://" not in path and not Path(path).expanduser().is_dir():
            raise StoreUnreachable(f"the state of {self.topology!r} cannot be read: there is no checkpoint store at {path}. "
                                   "Name it with .option(\"store\", ...), or the cluster that runs or ran the topology with "
                                   ".option(\"cluster\", ...)")
        return open_store(self.store)


def _store_of(cluster: str | None, topology: str) -> str:
    """The store of the running cluster (of several, the one that runs the topology), or the default store of a cluster by that
    name if none runs."""
    running = running_clusters()
    if cluster is None and running:
        cluster = cluster_running(topology)
    if cluster in running:
        return str(ask(cluster, "store"))
    return default_store(cluster or "default")


class StateSource(DataSource):
    """| option | meaning |
    | --- | --- |
    | `topology`, `component` | the owner of the state |
    | `state` | name of the state; default: `state` |
    | `store` | the checkpoint store: a path or URI. Default: that of the running cluster |
    | `cluster` | the Millrace cluster. Default: the running one; of several, the one that runs the topology |
    """

    @classmethod
    def name(cls) -> str:
        return "millrace-state"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return StateReader(StateOptions.of(self.options), schema)


class KeyGroupRead(msgspec.Struct, frozen=True):
    """One key group to read: the task that owned it and the chain that holds it. `batches`: its entries, if already read."""

    number: int
    task: int
    chain: list[PieceRef]
    batches: list[Any] | None = None


class StatePartition(InputPartition):
    """The key groups that one Spark task reads."""

    def __init__(self, groups: list[KeyGroupRead]) -> None:
        super().__init__(None)
        self.groups = groups

    def __repr__(self) -> str:
        return f"StatePartition({[group.number for group in self.groups]})"


class StateReader(DataSourceReader):
    """Plans the read beside the driver, and reads in executors."""

    def __init__(self, options: StateOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        unknown = [field.name for field in schema if field.name not in NAMES]
        if unknown:
            raise MillraceError(f"the schema of {options.label} has {', '.join(unknown)}, but the columns of a state are "
                                f"{', '.join(NAMES)}: .schema(...) selects among them and declares the types of key and value")
        check_columns(schema, options.label)
        for field in schema:
            if field.name in NUMBERS and not isinstance(field.dataType, IntegerType | LongType):
                raise MillraceError(f"{field.name} is declared {field.dataType.simpleString()}; declare it int or long")

    def partitions(self) -> Sequence[InputPartition]:
        store = self._options.open()
        try:
            return [StatePartition(groups) for groups in _shares(self._planned(store))]
        finally:
            store.close()

    def _planned(self, store: CheckpointStore) -> list[KeyGroupRead]:
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
                continue  # two waves were committed meanwhile: read the newer one
            return groups
        raise MillraceError(f"the checkpoints of {self._options.topology!r} are replaced faster than they can be read: pause "
                            "it, or set a longer topology.checkpoint.interval.secs")

    def _check_name(self, checkpoints: Checkpoints, groups: list[KeyGroupRead]) -> None:
        """Raise `UnknownName` if the component has entries in other states only. A state without any entries is an empty
        table."""
        names: set[str] = set()
        for group in groups:
            names |= self._entries(checkpoints, group).keys()
            if self._options.state in names:
                return
        if names:
            raise UnknownName(f"{self._options.component!r} of {self._options.topology!r} has no entries in a state "
                              f"{self._options.state!r}; it has {', '.join(sorted(names))}. Choose one with "
                              ".option(\"state\", ...)")

    def _entries(self, checkpoints: Checkpoints, group: KeyGroupRead) -> dict[str, Any]:
        return stored_entries(group.number, checkpoints.read_chain(group.chain), self._options.label)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StatePartition)
        for group in partition.groups:
            yield from group.batches or ()
        unread = [group for group in partition.groups if group.batches is None]
        if unread:
            yield from self._read(unread)

    def _read(self, groups: list[KeyGroupRead]) -> Iterator[pa.RecordBatch]:
        store = self._options.open()
        try:
            checkpoints = Checkpoints(store, self._options.topology)
            for group in groups:
                yield from self._batches(checkpoints, group)
        except CheckpointMissing as error:
            raise MillraceError(f"the checkpoint of {self._options.topology!r} was replaced by newer ones while "
                                f"{self._options.component!r} was read: pause the topology, or set a longer "
                                f"topology.checkpoint.interval.secs ({error})") from None
        finally:
            store.close()

    def _live(self, checkpoints: Checkpoints, group: KeyGroupRead) -> list[tuple[Any, Any]]:
        """The entries that have not expired."""
        values, dues = self._entries(checkpoints, group).get(self._options.state, ({}, {}))
        now = time.time()
        return [(key, value) for key, value in values.items() if key not in dues or dues[key] > now]

    def _batches(self, checkpoints: Checkpoints, group: KeyGroupRead) -> Iterator[pa.RecordBatch]:
        entries = self._live(checkpoints, group)
        for begin in range(0, len(entries), ROWS_PER_BATCH):
            rows = entries[begin : begin + ROWS_PER_BATCH]
            columns = {"key_group": [group.number] * len(rows), "task": [group.task] * len(rows),
                       "key": [key for key, _ in rows], "value": [value for _, value in rows]}
            yield record_batch([self._converted(field.dataType, columns[field.name]) for field in self._schema], self._schema,
                               self._options.label)

    @staticmethod
    def _converted(kind: Any, values: list[Any]) -> list[Any]:
        return [as_text(value) for value in values] if isinstance(kind, StringType) else [_listed(value) for value in values]


def as_text(value: Any) -> str | None:
    """Strings unchanged, None as null, everything else as JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else msgspec.json.encode(_jsonable(value)).decode()
    return text.encode("utf-8", "backslashreplace").decode()


def _jsonable(value: Any) -> Any:
    """The value with strings for dict keys and for integers beyond 64 bits, which the JSON encoder does not accept."""
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
    """A tuple or set as a list, which is an array to Spark."""
    return list(value) if isinstance(value, tuple | set | frozenset) else value


def _manifest(checkpoints: Checkpoints, options: StateOptions) -> Manifest:
    manifest = checkpoints.latest()
    if manifest is None:
        names = ", ".join(_topologies(checkpoints.store)) or "none"
        raise UnknownName(f"there is no checkpoint of a topology {options.topology!r} in {options.place}; topologies with "
                          f"checkpoints: {names}. Its first wave may not have been committed yet")
    return manifest


def _topologies(store: CheckpointStore) -> list[str]:
    return sorted({unquote(name.partition("/")[0]) for name in manifest_names(store.names(""))})


def _groups(manifest: Manifest, options: StateOptions) -> list[KeyGroupRead]:
    """The key groups of the component, by number."""
    if options.component not in manifest.parallelism:
        raise UnknownName(f"topology {options.topology!r} has no component {options.component!r}; it has "
                          f"{', '.join(sorted(manifest.parallelism))}")
    groups = [KeyGroupRead(number, record.index, chain) for record in manifest.records if record.component == options.component
             for number, chain in record.chains.items()]
    keyed = sorted({record.component for record in manifest.records if record.chains})
    if not groups and keyed:
        raise UnknownName(f"{options.component!r} of {options.topology!r} has no keyed state at wave {manifest.wave}; "
                          f"components with keyed state: {', '.join(keyed)}")
    return sorted(groups, key=lambda group: group.number)


def _shares(groups: list[KeyGroupRead]) -> list[list[KeyGroupRead]]:
    """Neighbouring groups divided among partitions; at least one partition, even if it is empty."""
    size = max(1, -(-len(groups) // PARTITIONS))
    return [groups[begin : begin + size] for begin in range(0, len(groups), size)] or [[]]
