"""Manifests, pieces and names, by examples; the property tests have every byte and every name."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from millrace.api.grouping import Grouping
from millrace.errors import CorruptCheckpoint, TopologyError
from millrace.model.graph import ComponentDef, Input, StreamDef, TaskId, TopologyGraph, batched
from millrace.state.checkpoint import (
    FORMAT,
    MAGIC,
    OWN,
    Blocks,
    InFlightStream,
    Manifest,
    PieceRef,
    TaskRecord,
    blob_name,
    check_fit,
    garbage,
    latest_numbers,
    manifest_name,
    manifest_names,
    pack,
    read_piece,
    task_prefix,
    topology_prefix,
)
from millrace.state.fragments import FragmentTree, cut

STREAMS = (StreamDef("default", ("word",)),)


def component(name: str, par: int, source: str | None = None, by: Any = None) -> ComponentDef:
    inputs = () if source is None else (Input(source, "default", by or Grouping.fields("word")),)
    return ComponentDef(name, "bolt" if inputs else "spout", f"parts:{name}", par, {}, STREAMS, inputs, False,
                        "process" if inputs else "next_tuple")


def graph(read: int = 2, split: int = 3, count: int = 2, **config: Any) -> TopologyGraph:
    """read -> split -> count, which is keyed."""
    parts = (component("read", read), component("split", split, "read", Grouping.SHUFFLE),
             component("count", count, "split"))
    return TopologyGraph("words", parts, {"topology.key.groups": 8, **config})


def whole(blob: str, offset: int = 0, length: int = 10) -> PieceRef:
    return PieceRef(blob, offset, length, 0, True)


def delta(blob: str, offset: int = 0, length: int = 5) -> PieceRef:
    return PieceRef(blob, offset, length, 0, False)


def manifest(*records: TaskRecord, wave: int = 7, **changes: Any) -> Manifest:
    values = {"topology": "words", "wave": wave, "epoch": 2, "key_groups": 8,
              "parallelism": {"read": 2, "split": 3, "count": 2}, "records": list(records), "at": 1.5, **changes}
    return Manifest(**values)


FULL = manifest(
    TaskRecord("read", 0, position=40), TaskRecord("read", 1, position=0),
    TaskRecord("split", 2, own=whole("s", length=3)),
    TaskRecord("count", 0, {0: [whole("a")], 1: [whole("a", 10), delta("b")]}, blocks={"a": Blocks(2, 1, [4, 5, 6])}),
    TaskRecord("count", 1, {2: [whole("c")]}, own=whole("c", 10, 1)))


# ---- manifests ----


def test_a_manifest_comes_back_as_it_was() -> None:
    assert Manifest.decode(FULL.encode()) == FULL


def test_manifest_properties() -> None:
    assert FULL.blobs() == {"a", "b", "c", "s"}
    assert FULL.chains("count") == {0: [whole("a")], 1: [whole("a", 10), delta("b")], 2: [whole("c")]}
    assert FULL.chains("split") == {}
    assert FULL.blocks("count") == {"a": Blocks(2, 1, [4, 5, 6])}
    assert FULL.positions() == {TaskId("read", 0): 40, TaskId("read", 1): 0}
    assert FULL.size("count") == 10 + 10 + 5 + 10 + 1
    assert FULL.size("split") == 3


@pytest.mark.parametrize(("records", "message"), [
    ([TaskRecord("count", 0), TaskRecord("count", 0)], r"two records of count\[0\]"),
    ([TaskRecord("count", 2)], r"a record of count\[2\], and 2 tasks"),
    ([TaskRecord("other", 0)], r"a record of other\[0\], and 0 tasks"),
    ([TaskRecord("count", 0, {8: [whole("a")]})], "key group 8 of 8"),
    ([TaskRecord("count", 0, {3: []})], "chain of key group 3 of 'count' has no whole first piece"),
    ([TaskRecord("count", 0, {3: [delta("a"), whole("b")]})], "has no whole first piece"),
    ([TaskRecord("count", 0, {3: [whole("a")]}), TaskRecord("count", 1, {3: [whole("b")]})],
     r"count\[1\] and another task both have key group 3"),
])
def test_records_that_cannot_be_restored_are_neither_written_nor_read(records: list[TaskRecord], message: str) -> None:
    wrong = manifest(*records)
    with pytest.raises(CorruptCheckpoint, match=message):
        wrong.encode()
    with pytest.raises(CorruptCheckpoint, match=message):
        Manifest.decode(framed(msgspec.msgpack.encode(wrong)))


def framed(body: bytes, version: int = FORMAT) -> bytes:
    head = struct.pack(">4sHQ", MAGIC, version, len(body))
    return head + struct.pack(">I", zlib.crc32(head + body)) + body


def test_another_format_is_refused() -> None:
    with pytest.raises(CorruptCheckpoint, match=f"format 9 and this Millrace reads format {FORMAT}"):
        Manifest.decode(framed(b"whatever it is", 9))


def test_a_body_that_is_not_a_manifest_is_refused() -> None:
    with pytest.raises(CorruptCheckpoint, match="another version of Millrace"):
        Manifest.decode(framed(msgspec.msgpack.encode({"what": "else"})))


# ---- pieces ----


def test_pieces_lie_one_after_the_other() -> None:
    first, own = b"first" * 1000, b"own"
    parts, refs = pack({4: (True, first), 9: (False, b""), OWN: (True, own)}, "blob")
    assert parts[0] is first and parts[1] is own and len(parts) == 2
    assert [(ref.blob, ref.offset, ref.length, ref.whole) for ref in refs.values()] == [
        ("blob", 0, 5000, True), ("blob", 5000, 0, False), ("blob", 5000, 3, True)]
    blob = b"".join(parts)
    assert [read_piece(refs[group], blob) for group in (4, 9, OWN)] == [first, b"", own]
    assert read_piece(refs[OWN], blob[5000:], 5000) == own
    with pytest.raises(CorruptCheckpoint, match="incomplete: only 0 are"):
        read_piece(refs[4], blob[1:], 1)


def test_nothing_packs_to_nothing() -> None:
    assert pack({}, "blob") == ([], {})


# ---- names ----


def test_names_sort_by_epoch_and_wave() -> None:
    names = [*(manifest_name("t", 3, wave) for wave in (0, 9, 10, 99, 10**12, 2**63)), manifest_name("t", 4, 1)]
    assert sorted(names) == names
    assert manifest_names([*names, blob_name("t", "c", 0, 1, 5), "t/readme"]) == names[::-1]


def test_the_tree_of_fragments_follows_the_names() -> None:
    tree = FragmentTree(1000)
    blobs = [blob_name(topology, "c.d/e", index, 1, wave) for topology in ("t", "t2") for index in (1, 12) for wave in (5, 6)]
    for blob in blobs:
        for fragment in cut(blob, b"abc", 1, 0):
            assert tree.put(fragment)
    assert tree.keep_only(task_prefix("t", "c.d/e", 1), {blobs[1]}) == 1
    assert [held.blob for held in tree.listing(topology_prefix("t"))] == blobs[1:4]
    assert tree.forget(topology_prefix("t")) == 3
    assert [held.blob for held in tree.listing()] == blobs[4:]


def test_the_latest_numbers_are_of_any_name() -> None:
    assert latest_numbers(["t/notes"]) == (0, 0)
    assert latest_numbers([blob_name("t", "c", 0, 2, 9), manifest_name("t", 3, 4), "t/notes"]) == (3, 9)


def test_garbage_is_what_nobody_needs() -> None:
    old, abandoned, new, ahead = (blob_name("t", "c", 0, 1, wave) for wave in (3, 4, 5, 6))
    unused = blob_name("t", "c", 1, 1, 4)
    kept = manifest(TaskRecord("count", 0, {0: [whole(abandoned), delta(new)]}), topology="t", wave=5)
    names = [old, abandoned, unused, new, ahead, *(manifest_name("t", 2, wave) for wave in (3, 5, 6)),
             "t/notes.txt", blob_name("other", "c", 0, 1, 1)]
    assert garbage(names, [kept], 5) == [old, unused, manifest_name("t", 2, 3)]
    assert garbage(names, [], 5) == []
    further = [manifest_name("t", 1, 9), manifest_name("t", 2, 9), blob_name("t", "count", 0, 1, 9)]
    assert garbage(further, [kept], 5, before_epoch=2) == [further[0], further[2]], "an earlier epoch has nothing under way"


# ---- compatibility ----


def test_a_topology_as_it_was_fits() -> None:
    check_fit(FULL, graph())


def test_a_keyed_component_may_have_any_parallelism() -> None:
    keyed = [msgspec.structs.replace(record, own=None) if record.component == "count" else record for record in FULL.records]
    check_fit(msgspec.structs.replace(FULL, records=keyed), graph(count=5))


def test_one_without_state_of_its_own_may_too() -> None:
    check_fit(manifest(TaskRecord("split", 2)), graph(read=7, split=1))


@pytest.mark.parametrize(("changed", "message"), [
    (graph(split=4), "wave 7 of 'words' has 3 tasks of 'split', each with its own state; the topology 'words' now has 4. "
                     "Set its par to 3, or"),
    (graph(read=1), "has 2 tasks of 'read', each with a position; the topology 'words' now has 1. Set its par to 2"),
    (graph(**{"topology.key.groups": 16}), "has 8 key groups; the topology 'words' now has 16. Set topology.key.groups to 8"),
    (TopologyGraph("words", graph().components[:2], {}), "has the components count, read, split; the topology 'words' now has "
                                                        "read, split. Name them as they were"),
    (TopologyGraph("words", (*graph().components[:2], component("count", 2, "split", Grouping.SHUFFLE)),
                   graph().config), "has state of 'count' by key; the topology 'words' now has no input of 'count'"),
])
def test_an_incompatible_topology_is_refused_with_advice(changed: TopologyGraph, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        check_fit(FULL, changed)
    assert message in str(caught.value)


def exact(**changes: Any) -> TopologyGraph:
    return graph(**{"topology.guarantee": "exactly-once", **changes})


def with_split(grouping: Grouping, stream: str = "default", fields: tuple[str, ...] = ("word",)) -> TopologyGraph:
    """The topology with another input of split."""
    before = exact()
    read, split, count = before.components
    changed = replace(split, inputs=(Input("read", stream, grouping),))
    outputs = (StreamDef("default", fields), StreamDef("other", fields))
    return replace(before, components=(replace(read, outputs=outputs), changed, count))


STREAM = InFlightStream("read", "default", ("word",), "shuffle")
IN_FLIGHT = manifest(TaskRecord("split", 2, in_flight=whole("s"), streams=[STREAM]), TaskRecord("count", 0, {0: [whole("a")]}))


def test_tuples_in_flight_fit_the_topology_as_it_was() -> None:
    check_fit(IN_FLIGHT, exact())
    assert IN_FLIGHT.blobs() == {"s", "a"} and IN_FLIGHT.size("split") == 10


@pytest.mark.parametrize(("changed", "message"), [
    (exact(count=5), "wave 7 of 'words' has tuples in flight between tasks, and 2 tasks of 'count'; the topology 'words' now "
                     "has 5. Resume it as it was and stop it with `millrace kill`, whose last wave leaves no tuples in "
                     "flight, or"),
    (exact(split=1), "and 3 tasks of 'split'; the topology 'words' now has 1."),
    (batched(exact()), "has tuples in flight between tasks; the topology 'words' now runs in batches, which have none."),
    (graph(), "has tuples in flight between tasks; the topology 'words' now is at-least-once and could lose them."),
    (with_split(Grouping.fields("word")), "wave 7 of 'words' has tuples in flight to 'split', from stream 'default' (word) of "
     "'read', grouped by shuffle; the topology 'words' now has stream 'default' (word) of 'read', grouped by fields(word). "
     "Resume it"),
    (with_split(Grouping.SHUFFLE, fields=("line",)), "(word) of 'read', grouped by shuffle; the topology 'words' now has "
     "stream 'default' (line) of 'read', grouped by shuffle. Resume it"),
    (with_split(Grouping.SHUFFLE, stream="other"), "grouped by shuffle; the topology 'words' now has no such input of 'split'. "
     "Resume it"),
    (exact(**{"topology.guarantee": "at-most-once"}), "now is at-most-once and could lose them."),
])
def test_tuples_in_flight_are_bound_to_their_tasks(changed: TopologyGraph, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        check_fit(IN_FLIGHT, changed)
    assert message in str(caught.value)


def test_a_record_of_an_earlier_version_has_no_tuples_in_flight() -> None:
    old = msgspec.msgpack.encode(["count", 0, {0: [whole("a")]}, None, None, {}, []])
    assert msgspec.msgpack.decode(old, type=TaskRecord) == TaskRecord("count", 0, {0: [whole("a")]})
