"""Routes the tuples of a stream to channels by its groupings, a chunk at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from millrace.api.grouping import Grouping, stable_hash
from millrace.errors import EmitError
from millrace.hotpath.plain import Rows
from millrace.hotpath.steps import buckets
from millrace.model.graph import resolve
from millrace.model.load import SAMPLED
from millrace.runtime.flow.column_hashes import can_hash, column_hashes
from millrace.runtime.flow.heavy_keys import HeavyKeys

if TYPE_CHECKING:
    from millrace.runtime.flow.channel import Outlet

KEYS_REMEMBERED = 100_000  # a route forgets all keys beyond this, so that unbounded key spaces do not fill memory
SAMPLE_KEYS = 512  # keys that are counted together
WHOLE = 64  # a shuffle sends up to this many tuples together: splitting them would cost more than it balances
FEW_PARTS = 8  # up to this many channels, a batch is searched for the rows of each; sorting it costs as much as ten searches

Parts = Iterable[tuple["Outlet", Any]]


class Route:
    """Routes for one subscription to a stream: splits rows or a batch among the target channels."""

    def __init__(self, channels: Sequence[Outlet]) -> None:
        self.channels = list(channels)

    def split(self, rows: Rows) -> Parts:
        raise NotImplementedError

    def split_batch(self, batch: pa.RecordBatch) -> Parts:
        raise NotImplementedError

    def count(self) -> None:
        """Bring counts of what was sent up to date, if the route has some that lag behind."""


class ToOne(Route):
    """Sends everything to one task: a global grouping, or a target with a single task."""

    def split(self, rows: Rows) -> Parts:
        return [(self.channels[0], rows)]

    def split_batch(self, batch: pa.RecordBatch) -> Parts:
        return [(self.channels[0], batch)]


class ToAll(Route):
    """Sends everything to every task."""

    def split(self, rows: Rows) -> Parts:
        return [(channel, list(rows)) for channel in self.channels]  # receivers must not share a list

    def split_batch(self, batch: pa.RecordBatch) -> Parts:
        return [(channel, batch) for channel in self.channels]


class Shuffle(Route):
    """Balances over the tasks: a large chunk is cut into equal slices. A small one goes to the task with the fewest tuples on
    their way, and among equals to the one that got least: with equal shares, a task that is slow for a moment would fill its
    channel and stop its sender, while others are idle."""

    def __init__(self, channels: Sequence[Outlet]) -> None:
        super().__init__(channels)
        self._sent = [0] * len(channels)  # by this route; by the channels' own counts a new one would get everything

    def split(self, rows: Rows) -> Parts:
        return self._spread(rows, len(rows), lambda start, stop: rows[start:stop])

    def split_batch(self, batch: pa.RecordBatch) -> Parts:
        return self._spread(batch, batch.num_rows, lambda start, stop: batch.slice(start, stop - start))

    def _spread(self, whole: Any, size: int, part: Callable[[int, int], Any]) -> Parts:
        channels = self.channels
        if size <= WHOLE:
            least = min(range(len(channels)), key=self._load)
            self._sent[least] += size
            return [(channels[least], whole)]
        bounds = [size * i // len(channels) for i in range(len(channels) + 1)]
        return [(channel, part(bounds[i], bounds[i + 1])) for i, channel in enumerate(channels)
                if bounds[i + 1] > bounds[i]]

    def _load(self, index: int) -> tuple[bool, int, int]:
        """The order in which tasks get small chunks. Full channels share equally what is sent all the same."""
        channel = self.channels[index]
        return channel.full, 0 if channel.full else channel.unconsumed, self._sent[index]


class Custom(Route):
    """Calls a user's function to choose the tasks for each tuple."""

    def __init__(self, channels: Sequence[Outlet], code: str) -> None:
        super().__init__(channels)
        self.code = code

    @cached_property
    def choose(self) -> Callable[[Sequence[Any], int], Sequence[int]]:
        """Imported on first use: if that fails, the tuples fail and not the worker."""
        function: Callable[[Sequence[Any], int], Sequence[int]] = resolve(self.code)
        return function

    def split(self, rows: Rows) -> Parts:
        buckets: list[list[tuple[Any, ...]]] = [[] for _ in self.channels]
        for row in rows:
            for index in self.choose(row, len(buckets)):
                if not 0 <= index < len(buckets):
                    raise EmitError(f"custom grouping {self.code} chose task {index} for {row!r}; "
                                    f"the tasks are 0 to {len(buckets) - 1}")
                buckets[index].append(row)
        return [(channel, bucket) for channel, bucket in zip(self.channels, buckets, strict=True) if bucket]

    def split_batch(self, batch: pa.RecordBatch) -> Parts:
        return self.split(rows_of_batch(batch))


class KeyMemory(dict[Any, int]):
    """Maps a key to the index of its task, so that a key is hashed once and a tuple costs one dict look-up."""

    def __init__(self, find: Callable[[Any], int]) -> None:
        self._find = find

    def __missing__(self, key: Any) -> int:
        if len(self) >= KEYS_REMEMBERED:
            self.clear()
        self[key] = task = self._find(key)
        return task


class ByFields(Route):
    """Sends equal keys to the same task: key -> key group -> the task that owns the group."""

    def __init__(self, channels: Sequence[Outlet], positions: Sequence[int], owners: Sequence[int]) -> None:
        super().__init__(channels)
        self.positions, self.owners = tuple(positions), tuple(owners)
        self._owner_of = np.array(owners, np.min_scalar_type(len(channels)))  # few bits are sorted faster
        self._memory = KeyMemory(self._task_of)

    def _task_of(self, key: Any) -> int:
        return self.owners[stable_hash(key) % len(self.owners)]

    def split(self, rows: Rows) -> Parts:
        try:
            parts = self._buckets(rows)
        except TypeError:  # a list or dict as key: it has a stable hash but is not hashable
            parts = self._split_unhashable(rows)
        return [(channel, part) for channel, part in zip(self.channels, parts, strict=True) if part]

    def _buckets(self, rows: Rows) -> list[list[tuple[Any, ...]]]:
        """The rows for each channel."""
        return buckets(rows, self._memory, self.positions, len(self.channels))

    def _split_unhashable(self, rows: Rows) -> list[list[tuple[Any, ...]]]:
        buckets: list[list[tuple[Any, ...]]] = [[] for _ in self.channels]
        key = itemgetter(*self.positions)
        for row in rows:
            buckets[self._task_of(key(row))].append(row)
        return buckets

    def split_batch(self, batch: pa.RecordBatch) -> Parts:
        return self._divided(batch, self._groups_of(batch))

    def _divided(self, batch: pa.RecordBatch, groups: np.ndarray) -> Parts:
        """The rows for each channel; `groups`: the key group of each row."""
        targets = self._owner_of.take(groups)
        if len(self.channels) <= FEW_PARTS:
            return [(channel, batch.take(pa.array(rows))) for index, channel in enumerate(self.channels)
                    if len(rows := np.flatnonzero(targets == index))]
        bounds = np.cumsum(np.bincount(targets, minlength=len(self.channels)))
        ordered = batch.take(pa.array(np.argsort(targets, kind="stable")))
        return [(channel, ordered.slice(start, stop - start))
                for channel, start, stop in zip(self.channels, [0, *bounds[:-1]], bounds, strict=True) if start < stop]

    def _groups_of(self, batch: pa.RecordBatch) -> np.ndarray:
        """The key group of each row."""
        columns = [batch.column(position) for position in self.positions]
        if len(columns) == 1:
            return self._groups_in(columns[0])
        columns = [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in columns]
        return self._hashed(columns)

    def _groups_in(self, column: pa.Array) -> np.ndarray:
        """The key group of each value. Each different one is hashed once."""
        encoded = column
        if not pa.types.is_dictionary(column.type):
            if pa.types.is_nested(column.type):  # Arrow cannot dictionary-encode these
                return self._hashed([column])
            encoded = column.dictionary_encode(null_encoding="encode")
        elif len(column.dictionary) > len(column):  # a part of a larger batch
            return self._groups_in(column.dictionary_decode())
        of_distinct, indices = self._hashed([encoded.dictionary]), encoded.indices
        if indices.null_count:  # of a column that came with its dictionary
            indices = indices.cast(pa.int64()).fill_null(len(of_distinct))
            of_distinct = np.append(of_distinct, self._hashed([pa.nulls(1)]))
        return of_distinct.take(indices.to_numpy())

    def _hashed(self, columns: list[pa.Array]) -> np.ndarray:
        """The key group for the values in each row of the columns."""
        if can_hash(columns):
            return column_hashes(columns) % len(self.owners)
        values = [values_of(column) for column in columns]
        keys = values[0] if len(values) == 1 else list(zip(*values, strict=True))
        return np.fromiter((stable_hash(key) % len(self.owners) for key in keys), np.int64, len(keys))


CountedKey = tuple[Any, int, int]  # key, key group, tuples of the sample


class KeySample:
    """Keys of a sample of tuples. Many are counted together, and told to `heavy` and `note`."""

    def __init__(self, groups: int, heavy: HeavyKeys, note: Callable[[Sequence[CountedKey]], None]) -> None:
        self._groups, self._heavy, self._note = groups, heavy, note
        self._keys: list[Any] = []  # not counted yet

    def take(self, keys: list[Any]) -> None:
        self._keys += keys
        if len(self._keys) >= SAMPLE_KEYS:
            self.count()

    def count(self) -> None:
        keys, self._keys, groups = self._keys, [], self._groups
        try:
            counted = [(key, stable_hash(key) % groups, count) for key, count in Counter(keys).items()]
        except TypeError:  # a list or dict as key: it has a stable hash but is not hashable
            by_text = {repr(key): key for key in keys}
            counted = [(text, stable_hash(by_text[text]) % groups, count) for text, count in Counter(map(repr, keys)).items()]
        self._heavy.add(counted)
        self._note(counted)


class BySampledFields(ByFields):
    """Also counts the tuples of each key group by a sample: hashing every key would cost too much. The same sample tells the
    most frequent keys."""

    def __init__(self, route: ByFields, counts: np.ndarray, heavy: HeavyKeys) -> None:
        super().__init__(route.channels, route.positions, route.owners)
        self._counts, self._heavy, self._key = counts, heavy, itemgetter(*route.positions)
        self._next = SAMPLED // 2  # tuples before the next one of the sample; from 0, each new plan would add to the counts
        self._sample = self._batch_sample = KeySample(len(route.owners), heavy, self._note)

    def split(self, rows: Rows) -> Parts:
        if self._next < len(rows):
            self._take(self._sample, list(map(self._key, rows[self._next::SAMPLED])))
        self._next -= len(rows)
        return super().split(rows)

    def split_batch(self, batch: pa.RecordBatch) -> Parts:
        if self._next < batch.num_rows:
            places = pa.array(range(self._next, batch.num_rows, SAMPLED))
            columns = [values_of(batch.column(position).take(places)) for position in self.positions]
            self._take(self._batch_sample, columns[0] if len(columns) == 1 else list(zip(*columns, strict=True)))
        self._next -= batch.num_rows
        return super().split_batch(batch)

    def _take(self, sample: KeySample, keys: list[Any]) -> None:
        self._next += SAMPLED * len(keys)
        sample.take(keys)

    def count(self) -> None:
        """Count what was sampled so far."""
        self._sample.count()

    def _note(self, counted: Sequence[CountedKey]) -> None:
        """Count the tuples that are sent: each one of the sample stands for those up to the next."""
        for _, group, count in counted:
            self._counts[group] += SAMPLED * count


class ByGroups(ByFields):
    """Also counts the tuples of each key group; the counts drive the reassignment of groups to tasks."""

    def __init__(self, route: ByFields, counts: np.ndarray, known: dict[Any, int]) -> None:
        """`known`: key groups of keys seen before; the group of a key never changes."""
        super().__init__(route.channels, route.positions, route.owners)
        self._counts, self._known = counts, known

    def _group_of(self, key: Any) -> int:
        known = self._known
        try:
            return known[key]
        except TypeError:  # a list or dict as key: it has a stable hash but is not hashable
            return stable_hash(key) % len(self.owners)
        except KeyError:
            if len(known) >= KEYS_REMEMBERED:
                known.clear()
            group = known[key] = stable_hash(key) % len(self.owners)
            return group

    def split(self, rows: Rows) -> Parts:
        owners = self.owners
        buckets: list[list[tuple[Any, ...]]] = [[] for _ in self.channels]
        keys = list(map(itemgetter(*self.positions), rows))
        try:
            groups = list(map(self._known.__getitem__, keys))
        except (KeyError, TypeError):
            groups = list(map(self._group_of, keys))
        for row, group in zip(rows, groups, strict=True):
            buckets[owners[group]].append(row)
        for group, count in Counter(groups).items():
            self._counts[group] += count
        return [(channel, bucket) for channel, bucket in zip(self.channels, buckets, strict=True) if bucket]

    def split_batch(self, batch: pa.RecordBatch) -> Parts:
        groups = self._groups_of(batch)
        self._counts += np.bincount(groups, minlength=len(self._counts))
        return self._divided(batch, groups)


def rows_of_batch(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*map(values_of, batch.columns), strict=True))


def values_of(column: pa.Array) -> list[Any]:
    """The values of a column as a row has them: a map is a dict, and a time with a zone is in UTC."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if not pa.types.is_nested(kind) and not pa.types.is_timestamp(kind):
        plain: list[Any] = column.to_pylist()  # 20 times as fast as with `maps_as_pydicts`
        return plain
    in_utc = _in_utc(kind)
    column = column if in_utc == kind else column.cast(in_utc)
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return values


@lru_cache
def _in_utc(kind: pa.DataType) -> pa.DataType:
    """The type with UTC as the zone of all its timestamps that have one."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_map(kind):
        return pa.map_(_field_in_utc(kind.key_field), _field_in_utc(kind.item_field), keys_sorted=kind.keys_sorted)
    if pa.types.is_struct(kind):
        return pa.struct([_field_in_utc(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_field_in_utc(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_field_in_utc(kind.value_field))
    return kind


def _field_in_utc(field: pa.Field) -> pa.Field:
    return field.with_type(_in_utc(field.type))


def make_route(grouping: Grouping, channels: Sequence[Outlet], fields: Sequence[str], owners: Sequence[int],
               lanes: Sequence[Outlet] = ()) -> Route:
    """Make the route for one subscription. For a fields grouping, `owners` maps key groups to tasks, or to `lanes`, numbered
    after the tasks."""
    if grouping.kind == "custom":
        return Custom(channels, grouping.code)
    if grouping.kind == "all":
        return ToAll(channels)
    if grouping.kind == "global" or len(channels) == 1:
        return ToOne(channels[:1])
    if grouping.kind == "fields":
        return ByFields([*channels, *lanes], [fields.index(name) for name in grouping.names], owners)
    if grouping.kind == "local-or-shuffle":
        return Shuffle([channel for channel in channels if channel.local is not None] or channels)
    return Shuffle(channels)
