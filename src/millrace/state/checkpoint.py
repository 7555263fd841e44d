"""Checkpoints as values: pieces in blobs, chains of pieces, and the manifest that ties them together.

    blob        the pieces that one task made at one wave, concatenated
    chain       the pieces of a key group, applied in order; the first is whole
    manifest    all chains, other states and positions of a topology at a wave; once it is written, the wave is committed

A manifest as bytes:  magic, 4 bytes; format, 2; length of the body, 8; CRC-32 of all this and the body, 4; the body, msgpack.
The reference to a piece has its length and CRC-32, so that a part of a blob can be verified separately.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from millrace.config import GUARANTEE, KEY_GROUP_COUNT
from millrace.errors import CorruptCheckpoint, TopologyError
from millrace.model.elastic_setting import ElasticSetting
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.state.path_step import path_step

OWN = -1  # in place of a key group in `pack`: the task's `snapshot()`, which belongs to no group
IN_FLIGHT = -2  # the same for chunks that the wave has overtaken
MAGIC = b"MRCP"
FORMAT = 1

_HEAD = struct.Struct(">4sHQ")
_SUM = struct.Struct(">I")
_NAME = re.compile(r"([^/]+)/([^/.]+/\d+/)?(\d{20})-(\d{20})(\.manifest)?")


class PieceRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The location of a piece, with its checksum."""

    blob: str
    offset: int
    length: int
    crc: int
    whole: bool


class Blocks(msgspec.Struct, frozen=True, array_like=True):
    """The fragments of a blob: r raw and c check blocks, and the slot that each was sent to."""

    r: int
    c: int
    slots: list[int]


class InFlightStream(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A stream of which a task has overtaken tuples, as the topology declared it for them."""

    source: str
    stream: str
    fields: tuple[str, ...]
    grouping: str

    def __str__(self) -> str:
        return f"stream {self.stream!r} ({', '.join(self.fields)}) of {self.source!r}, grouped by {self.grouping}"


class SplitRecord(msgspec.Struct, frozen=True, array_like=True):
    """The place of a split of a spout: its position, and its `snapshot()` as bytes, if it has one. Both are small and always
    needed together, so they are in the manifest and not in a blob."""

    position: int
    own: bytes = b""


class TaskRecord(msgspec.Struct, frozen=True, array_like=True):
    """The report of a task at a wave. `own` is its `snapshot()`; `position` that of a replayable spout, `splits` those of one
    with splits; `in_flight` the input that the wave has overtaken, which the task processes first when it is restored, and
    `streams` where it comes from."""

    component: str
    index: int
    chains: dict[int, list[PieceRef]] = {}
    own: PieceRef | None = None
    position: int | None = None
    blocks: dict[str, Blocks] = {}  # by blob that contains one of its pieces
    prepared: list[str] = []  # tokens of the output that a sink has prepared and not published, see `TwoPhaseSink`
    in_flight: PieceRef | None = None
    streams: list[InFlightStream] = []
    splits: dict[int, SplitRecord] = {}

    @property
    def task(self) -> TaskId:
        return TaskId(self.component, self.index)

    def pieces(self) -> Iterator[PieceRef]:
        for chain in self.chains.values():
            yield from chain
        if self.own is not None:
            yield self.own
        if self.in_flight is not None:
            yield self.in_flight


def batch_offsets(epoch: int, wave: int) -> str:
    """The name of the offsets of a topology that runs in batches since this epoch, counted from this wave: <epoch>-<wave>."""
    return f"{epoch}-{wave}"


def base_wave(offsets: str) -> int:
    """The wave from which the batches with these offsets are counted."""
    return int(offsets.rpartition("-")[2])


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """A topology at a wave: everything needed to resume from it. `epoch` is the one that wrote it to the store; `wave_epoch`
    the one in which its tasks prepared it, which is earlier if `epoch` resumed from it."""

    topology: str
    wave: int
    epoch: int
    key_groups: int
    parallelism: dict[str, int]
    records: list[TaskRecord]
    at: float
    wave_epoch: int = 0
    offsets: str = ""  # names the directories with Spark's reading positions of its sources, or of the DataFrame spouts' feeds
    offsets_digest: str = ""  # of Spark's reading positions of the batch; empty for a resident topology, and in older manifests
    declared: dict[str, int] = {}  # numbers of tasks in the declarations; empty in older manifests
    splits: dict[str, int] = {}  # numbers of splits of the spouts that have some
    owners: dict[str, list[int]] = {}  # of key groups and splits, by component; empty for batches, and in older manifests
    elastic: ElasticSetting | None = None  # the model by which it is scaled; None: it is not

    @property
    def overtook(self) -> bool:
        """True if the wave has saved tuples that it has overtaken."""
        return any(record.in_flight is not None for record in self.records)

    @property
    def of_batches(self) -> bool:
        """True if `offsets` is that of a batched topology, see `batch_offsets`; a resident one has the number of a run."""
        return "-" in self.offsets

    def encode(self) -> bytes:
        """Encodes the manifest; refuses one that could not be restored, because then the wave must not be committed."""
        self._check()
        body = msgspec.msgpack.encode(self)
        head = _HEAD.pack(MAGIC, FORMAT, len(body))
        return head + _SUM.pack(zlib.crc32(body, zlib.crc32(head))) + body

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        body = _body(data)
        try:
            manifest = msgspec.msgpack.decode(body, type=cls)
        except msgspec.DecodeError as error:
            raise CorruptCheckpoint(f"the {len(body)} bytes of a manifest are undamaged but not a manifest: {error}. Was it "
                                    "written by another version of Millrace?") from error
        manifest._check()
        return manifest

    def blobs(self) -> set[str]:
        """The blobs that must be in the store for this manifest to be usable."""
        return {piece.blob for record in self.records for piece in record.pieces()}

    def chains(self, component: str) -> dict[int, list[PieceRef]]:
        """The chains by key group, regardless of the task: state belongs to groups."""
        return {group: chain for record in self.records if record.component == component
                for group, chain in record.chains.items()}

    def blocks(self, component: str) -> dict[str, Blocks]:
        """The fragments' slots, by blob."""
        return {blob: blocks for record in self.records if record.component == component
                for blob, blocks in record.blocks.items()}

    def positions(self) -> dict[TaskId, int]:
        """The position from which each task of a replayable spout resumes, or each of its splits, if it has some."""
        by_task = {record.task: record.position for record in self.records if record.position is not None}
        return by_task | {TaskId(record.component, split): place.position for record in self.records
                          for split, place in record.splits.items()}

    def task_sizes(self) -> dict[TaskId, int]:
        """Bytes to read to restore each task."""
        return {record.task: sum(piece.length for piece in record.pieces()) for record in self.records}

    def group_sizes(self) -> dict[tuple[str, int], int]:
        """Bytes to read to restore each key group, by component and group."""
        return {(record.component, group): sum(piece.length for piece in chain) for record in self.records
                for group, chain in record.chains.items()}

    def size(self, component: str) -> int:
        """Bytes to read to restore the component."""
        return sum(piece.length for record in self.records if record.component == component for piece in record.pieces())

    def _check(self) -> None:
        tasks: set[TaskId] = set()
        groups: set[tuple[str, int]] = set()
        for record in self.records:
            if record.task in tasks:
                raise self._unusable(f"it has two records of {record.task}")
            if not 0 <= record.index < self.parallelism.get(record.component, 0):
                raise self._unusable(f"it has a record of {record.task}, and {self.parallelism.get(record.component, 0)} tasks "
                                     f"of {record.component!r}")
            tasks.add(record.task)
            for group, chain in record.chains.items():
                if (record.component, group) in groups:
                    raise self._unusable(f"{record.task} and another task both have key group {group}")
                if not 0 <= group < self.key_groups:
                    raise self._unusable(f"{record.task} has key group {group} of {self.key_groups}")
                if not chain or not chain[0].whole:
                    raise self._unusable(f"the chain of key group {group} of {record.component!r} has no whole first piece")
                groups.add((record.component, group))
        self._check_splits()

    def _check_splits(self) -> None:
        if not self.records:  # a fresh start
            return
        for name, count in self.splits.items():
            splits = [split for record in self.records if record.component == name for split in record.splits]
            if sorted(splits) != list(range(count)):
                raise self._unusable(f"it has the splits {sorted(splits)} of {name!r}, which has 0 to {count - 1}")

    def _unusable(self, why: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"the manifest of wave {self.wave} of {self.topology!r} cannot be restored: {why}. This is a "
                                 "bug in Millrace; the previous wave is still good")


def _body(data: bytes) -> memoryview:
    """The body behind the header; CorruptCheckpoint if any byte has changed."""
    start = _HEAD.size + _SUM.size
    view = memoryview(data)
    if len(view) < start:
        raise _torn(f"has {len(view)} bytes, fewer than the {start} of its header")
    magic, version, length = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise _torn(f"begins with {bytes(magic)!r} instead of {MAGIC!r}")
    if length != len(view) - start:
        raise _torn(f"should have {length} bytes after its header and has {len(view) - start}")
    if _SUM.unpack_from(view, _HEAD.size)[0] != zlib.crc32(view[start:], zlib.crc32(view[: _HEAD.size])):
        raise _torn("does not match its CRC")
    if version != FORMAT:
        raise CorruptCheckpoint(f"a manifest has format {version} and this Millrace reads format {FORMAT}: continue with the "
                                "version that wrote it, or start the topology without its checkpoints")
    return view[start:]


def _torn(what: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"a manifest {what}: it was not completely written, or something else overwrote it. The previous "
                             "one may be good")


# ---- pieces ----


def pack(pieces: Mapping[int, tuple[bool, bytes]], blob: str) -> tuple[list[bytes], dict[int, PieceRef]]:
    """Packs group -> (whole, content) into a blob: its parts in the order to write them, and the reference to each group's
    piece. The task's `snapshot()` has the key `OWN`, its overtaken input `IN_FLIGHT`."""
    refs: dict[int, PieceRef] = {}
    offset = 0
    for group, (whole, content) in pieces.items():
        refs[group] = PieceRef(blob, offset, len(content), zlib.crc32(content), whole)
        offset += len(content)
    return [content for _, content in pieces.values() if content], refs


def read_piece(ref: PieceRef, data: bytes | memoryview, start: int = 0) -> bytes:
    """Returns the piece after checking it. `data` is the blob from byte `start` on."""
    begin = ref.offset - start
    content = memoryview(data)[begin : begin + ref.length] if begin >= 0 else memoryview(b"")
    if len(content) != ref.length:
        raise CorruptCheckpoint(f"a piece of {ref.length} bytes at {ref.offset} of {ref.blob} is incomplete: only "
                                f"{len(content)} are there. The blob was truncated, or is another one; an older checkpoint, or "
                                "the fragments in the workers' memory, may still have it")
    if zlib.crc32(content) != ref.crc:
        raise CorruptCheckpoint(f"a piece of {ref.length} bytes at {ref.offset} of {ref.blob} has the CRC "
                                f"{zlib.crc32(content):08x} and was written with {ref.crc:08x}: its bytes have changed. An "
                                "older checkpoint, or the fragments in the workers' memory, may still have it")
    return bytes(content)


# ---- names ----
#
#     <topology>/<component>/<task index>/<epoch>-<wave>      a blob
#     <topology>/<epoch>-<wave>.manifest                      a manifest; a quoted component name has no dot


class _Name(NamedTuple):
    topology: str  # quoted
    epoch: int
    wave: int
    is_manifest: bool


def topology_prefix(topology: str) -> str:
    """The path above all names of a topology."""
    return path_step(topology)


def task_prefix(topology: str, component: str, index: int) -> str:
    """The path above the names of a task's blobs."""
    return f"{topology_prefix(topology)}/{path_step(component)}/{index}"


def blob_name(topology: str, component: str, index: int, epoch: int, wave: int) -> str:
    return f"{task_prefix(topology, component, index)}/{epoch:020d}-{wave:020d}"


def epoch_of(name: str) -> int:
    """The epoch in the name of a blob or manifest."""
    parsed = _parsed(name)
    return parsed.epoch if parsed is not None else 0


def wave_of(blob: str) -> int:
    """The wave at which a blob of this name was made."""
    return int(blob.rpartition("-")[2])


def manifest_name(topology: str, epoch: int, wave: int) -> str:
    """The name of a manifest. It has the epoch, so that a late commit of a replaced master neither overwrites nor outranks
    its successor's."""
    return f"{topology_prefix(topology)}/{epoch:020d}-{wave:020d}.manifest"


def manifest_names(names: Iterable[str]) -> list[str]:
    """The names of manifests, newest first: by epoch, then by wave."""
    manifests = [(parsed, name) for name in names if (parsed := _parsed(name)) is not None and parsed.is_manifest]
    return [name for _, name in sorted(manifests, key=lambda each: (each[0].epoch, each[0].wave), reverse=True)]


def latest_numbers(names: Iterable[str]) -> tuple[int, int]:
    """The highest epoch and the highest wave of any name, including abandoned waves; (0, 0) if there is none."""
    known = [parsed for name in names if (parsed := _parsed(name)) is not None]
    return max((parsed.epoch for parsed in known), default=0), max((parsed.wave for parsed in known), default=0)


def garbage(names: Iterable[str], kept: Iterable[Manifest], before_wave: int, before_epoch: int = 0) -> list[str]:
    """Blobs and manifests of waves up to `before_wave`, and of epochs before `before_epoch`, that no kept manifest needs.
    Others belong to a wave in progress. Names of topologies without a kept manifest, and names in another format, are not
    garbage."""
    needed: set[str] = set()
    topologies: set[str] = set()
    for manifest in kept:
        needed |= {*manifest.blobs(), manifest_name(manifest.topology, manifest.epoch, manifest.wave)}
        topologies.add(path_step(manifest.topology))
    return [name for name in names if name not in needed and (parsed := _parsed(name)) is not None
            and parsed.topology in topologies and (parsed.wave <= before_wave or parsed.epoch < before_epoch)]


def uncommitted(names: Iterable[str], topology: str, epoch: int, wave: int, needed: Mapping[TaskId, Iterable[str]]) -> set[str]:
    """Blobs of these tasks, of waves up to `wave` and epochs up to `epoch`, except those needed by the task."""
    kept = {task_prefix(topology, *task): set(blobs) for task, blobs in needed.items()}
    return {name for name in names if (parsed := _parsed(name)) is not None and not parsed.is_manifest
            and parsed.wave <= wave and parsed.epoch <= epoch
            and name not in kept.get(name.rpartition("/")[0], (name,))}


def _parsed(name: str) -> _Name | None:
    match = _NAME.fullmatch(name)
    if match is None or (match[2] is None) != (match[5] is not None):
        return None
    return _Name(match[1], int(match[3]), int(match[4]), match[5] is not None)


# ---- compatibility with a topology ----


def check_fit(manifest: Manifest, graph: TopologyGraph) -> None:
    """Raises TopologyError if the topology cannot resume from this checkpoint. Keyed components may have any parallelism."""
    now = {component.name: component for component in graph.components}
    if now.keys() != manifest.parallelism.keys():
        raise _misfit(manifest, graph, f"has the components {', '.join(sorted(manifest.parallelism))}",
                      f"has {', '.join(sorted(now))}", "Name them as they were")
    if graph.key_groups != manifest.key_groups:
        raise _misfit(manifest, graph, f"has {manifest.key_groups} key groups", f"has {graph.key_groups}",
                      f"Set {KEY_GROUP_COUNT.key} to {manifest.key_groups}")
    if manifest.overtook:
        _check_in_flight(manifest, graph)
    if manifest.records:
        _check_splits(manifest, graph)
    for record in manifest.records:
        _check_record(manifest, graph, record, now[record.component])


def _check_splits(manifest: Manifest, graph: TopologyGraph) -> None:
    """Each split has a position of its own: their number must be what it was. In batches, DataFrames have none."""
    for spout in graph.spouts:
        if spout.dataframe and graph.batched:
            continue
        before = manifest.splits.get(spout.name, 0)
        if spout.splits != before:
            raise _misfit(manifest, graph, f"has {before or 'no'} splits of {spout.name!r}", f"has {spout.splits or 'none'}",
                          f"Set its splits to {before}")


def _check_in_flight(manifest: Manifest, graph: TopologyGraph) -> None:
    """Tuples that the wave has overtaken were sent from one task to another: both must be there to process them. No spout
    replays them: if a worker fails, only the return of all tasks to this wave brings them back."""
    advice = "Resume it as it was and stop it with `millrace kill`, whose last wave leaves no tuples in flight"
    if graph.batched:
        raise _misfit(manifest, graph, "has tuples in flight between tasks", "runs in batches, which have none", advice)
    if not graph.exactly_once:
        raise _misfit(manifest, graph, "has tuples in flight between tasks", f"is {GUARANTEE.of(graph.config)} and could lose "
                      "them", advice)
    for component in graph.components:
        before = manifest.parallelism[component.name]
        if component.par != before:
            raise _misfit(manifest, graph, f"has tuples in flight between tasks, and {before} tasks of {component.name!r}",
                          f"has {component.par}", advice)
    for target, stream in sorted({(record.component, stream) for record in manifest.records for stream in record.streams}):
        now = stream_to(graph, target, stream.source, stream.stream)
        if now != stream:
            raise _misfit(manifest, graph, f"has tuples in flight to {target!r}, from {stream}",
                          f"has {now}" if now is not None else f"has no such input of {target!r}", advice)


def stream_to(graph: TopologyGraph, component: str, source: str, stream: str) -> InFlightStream | None:
    """The stream as the component reads it; None if it does not."""
    for read in graph.component(component).inputs:
        if (read.source, read.stream) == (source, stream):
            return InFlightStream(source, stream, graph.component(source).stream(stream).fields, str(read.grouping))
    return None


def _check_record(manifest: Manifest, graph: TopologyGraph, record: TaskRecord, component: ComponentDef) -> None:
    before = manifest.parallelism[component.name]
    if record.chains and not component.keyed:
        raise _misfit(manifest, graph, f"has state of {component.name!r} by key", f"has no input of {component.name!r} that is "
                      "grouped by fields", "Group it by the same fields as before")
    bound = record.own is not None or record.position is not None
    if bound and component.par != before:
        what = "its own state" if record.own is not None else "a position"
        raise _misfit(manifest, graph, f"has {before} tasks of {component.name!r}, each with {what}", f"has {component.par}",
                      f"Set its par to {before}")


def _misfit(manifest: Manifest, graph: TopologyGraph, had: str, has: str, advice: str) -> TopologyError:
    return TopologyError(f"the checkpoint of wave {manifest.wave} of {manifest.topology!r} {had}; the topology {graph.name!r} "
                         f"now {has}. {advice}, or start it under another name, without its state")
