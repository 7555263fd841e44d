"""A Redis stream read as a log."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest
import redis
from recording import attach, drain

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.connectors.redis_log import RedisLogSpout
from millrace.connectors.redis_log_reader import LARGEST_MS, LARGEST_SEQUENCE
from millrace.errors import MillraceError, TopologyError
from millrace.testing.local_cluster import LocalCluster
from support.scaling.scaled_runs import scale

pytestmark = pytest.mark.redis
COLLECTED: list[str] = []


class Collect(Bolt):
    def process(self, tup):
        COLLECTED.append(tup.values.id)


class ReadLog(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.chunk.tuples": 5}
    log = RedisLogSpout.spec(par=1, config={"splits": 6})
    collect = Collect.spec(inputs={log: Grouping.GLOBAL})


class FakeClock:
    """A clock that skips the pause after an empty read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def log_spout(server, task_index=0, parallelism=1, tracked=False, **config):
    config = {"url": server.url, "key": "log", **config}
    return attach(RedisLogSpout, config, task_index, parallelism, tracked, clock=FakeClock())


def successor(server, position, snapshot=None, **config):
    """A spout that resumes from a position, as the engine starts it; exactly-once also restores its snapshot."""
    spout, recorder = log_spout(server, **config)
    if snapshot is not None:
        spout.restore(snapshot)
    spout._next_position = position
    spout.seek(position)
    return spout, recorder


def fill(client, *ids):
    for id in ids:
        client.xadd("log", {"text": f"at {id}"}, id=id)


def ids(emits):
    return [emitted.values[0] for emitted in emits]


def test_all_entries_in_order_with_their_position(redis_server, redis_client):
    fill(redis_client, "1-1", "1-2", "7-0", "1700000000000-3")
    emits = drain(*log_spout(redis_server, count=3))
    assert [emitted.values for emitted in emits] == [
        (id, {"text": f"at {id}"}) for id in ("1-1", "1-2", "7-0", "1700000000000-3")]
    assert [emitted.tup_id for emitted in emits] == [1 << 22 | 1, 1 << 22 | 2, 7 << 22, 1700000000000 << 22 | 3]


def test_from_any_position(redis_server, redis_client):
    written = [f"{n}-{m}" for n in (1, 2, 5) for m in (0, 1, LARGEST_SEQUENCE)]
    fill(redis_client, *written)
    spout, recorder = log_spout(redis_server, count=2)
    emits = drain(spout, recorder)
    assert ids(emits) == written
    for number, emitted in enumerate(emits):
        spout.seek(emitted.tup_id)
        assert drain(spout, recorder) == emits[number:]
        assert ids(drain(*successor(redis_server, emitted.tup_id + 1))) == written[number + 1:]


def test_a_stream_that_does_not_exist_yet(redis_server, redis_client):
    for start in ("0", "$"):
        spout, recorder = log_spout(redis_server, start=start)
        assert drain(spout, recorder) == []
        fill(redis_client, "5-0", "5-1")
        assert ids(drain(spout, recorder)) == ["5-0", "5-1"]
        redis_client.delete("log")


def test_start_at_the_end(redis_server, redis_client):
    fill(redis_client, "1-0", "2-0")
    spout, recorder = log_spout(redis_server, start="$")
    fill(redis_client, "3-0")
    assert ids(drain(spout, recorder)) == ["3-0"]
    fill(redis_client, "4-0")
    assert ids(drain(*successor(redis_server, spout.position(), start="$"))) == ["4-0"]


def test_tasks_share_the_stream(redis_server, redis_client):
    written = [f"{n}-0" for n in range(1, 200)]
    fill(redis_client, *written)
    spouts = [log_spout(redis_server, task, 4, count=10) for task in range(4)]
    shares = [ids(drain(*spout)) for spout in spouts]
    assert sorted(itertools.chain(*shares), key=written.index) == written
    assert all(len(share) > 25 for share in shares)
    assert len({spout.position() for spout, _ in spouts}) == 1, "other tasks' entries are passed over"


def test_position_and_failure_when_tracked(redis_server, redis_client):
    fill(redis_client, "1-0", "2-0", "3-0")
    spout, recorder = log_spout(redis_server, tracked=True)
    emits = drain(spout, recorder)
    assert spout.position() == 1 << 22
    spout.ack(emits[0].tup_id)
    assert spout.position() == 2 << 22
    spout.fail(emits[1].tup_id)
    assert recorder.take() == [emits[1]]
    for emitted in emits[1:]:
        spout.ack(emitted.tup_id)
    assert spout.position() == (3 << 22) + 1


def test_trimmed_before_the_start_is_not_missed(redis_server, redis_client):
    fill(redis_client, "1-0", "2-0", "3-0")
    redis_client.xtrim("log", minid="3-0", approximate=False)
    assert ids(drain(*log_spout(redis_server))) == ["3-0"]


def test_trimmed_after_it_was_read_is_no_error(redis_server, redis_client):
    spout, recorder = log_spout(redis_server, count=3)
    seen = []
    for n in range(1, 40, 4):
        fill(redis_client, *[f"{m}-0" for m in range(n, n + 4)])
        seen += ids(drain(spout, recorder))
        redis_client.xtrim("log", maxlen=0, approximate=False)
    assert seen == [f"{n}-0" for n in range(1, 41)]
    fill(redis_client, "99-0")
    assert ids(drain(*successor(redis_server, spout.position(), spout.snapshot()))) == ["99-0"]


def test_trimmed_before_it_was_read(redis_server, redis_client):
    spout, recorder = log_spout(redis_server, count=2)
    fill(redis_client, *[f"{n}-0" for n in range(1, 8)])
    spout.next_tuple()
    position, snapshot = spout.position(), spout.snapshot()
    assert ids(recorder.take()) == ["1-0", "2-0"]
    redis_client.xtrim("log", minid="5-0", approximate=False)
    for late, _ in ((spout, recorder), successor(redis_server, position, snapshot)):
        for _ in range(2):
            with pytest.raises(MillraceError, match=r"cannot resume the stream 'log' at 2-1: 2 entries from there on"):
                late.next_tuple()
    assert recorder.take() == []


def test_all_trimmed_before_it_was_read(redis_server, redis_client):
    spout, _ = log_spout(redis_server, start="$")
    fill(redis_client, "1-0")
    redis_client.xtrim("log", maxlen=0, approximate=False)
    with pytest.raises(MillraceError, match="1 entries from there on were trimmed"):
        spout.next_tuple()


def test_a_position_alone_cannot_tell_when_nothing_before_it_is_left(redis_server, redis_client):
    fill(redis_client, "1-0", "2-0", "3-0", "4-0")
    redis_client.xtrim("log", minid="2-0", approximate=False)
    assert ids(drain(*successor(redis_server, (2 << 22) + 1))) == ["3-0", "4-0"]
    redis_client.xtrim("log", minid="3-0", approximate=False)
    spout, _ = successor(redis_server, (2 << 22) + 1)
    with pytest.raises(MillraceError, match="at 2-1: no entry up to there is left"):
        spout.next_tuple()
    assert drain(*successor(redis_server, (4 << 22) + 1)) == [], "nothing has come since"


def test_a_stream_that_was_recreated(redis_server, redis_client):
    spout, recorder = log_spout(redis_server)
    fill(redis_client, "1-0", "2-0", "3-0")
    drain(spout, recorder)
    redis_client.delete("log")
    assert drain(spout, recorder) == []
    fill(redis_client, "9-0", "9-1", "9-2", "9-3")
    with pytest.raises(MillraceError, match="deleted and created again"):
        spout.next_tuple()


def test_deleted_entries_in_the_middle_are_skipped(redis_server, redis_client):
    fill(redis_client, "1-0", "2-0", "3-0", "4-0")
    spout, recorder = log_spout(redis_server, count=1)
    spout.next_tuple()
    redis_client.xdel("log", "3-0")
    recorder.take()
    assert ids(drain(spout, recorder)) == ["2-0", "4-0"]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("trimmed", [1, 2, 4, 6])
@pytest.mark.parametrize("deleted", ["2-0", "3-0", "4-0", "5-0", "9-0"])
def test_entries_deleted_before_they_were_read_are_not_missed(redis_server, redis_client, deleted, trimmed, restarted):
    """Batches are full, so the end of the stream is not reached; everything that was read is trimmed."""
    written = [f"{n}-0" for n in range(1, 10)]
    fill(redis_client, *written)
    spout, recorder = log_spout(redis_server, count=1)
    spout.next_tuple()
    redis_client.xdel("log", deleted)
    for _ in range(trimmed - 1):
        spout.next_tuple()
    seen = ids(recorder.take())
    redis_client.xtrim("log", minid=f"{seen[-1].removesuffix('-0')}-1", approximate=False)
    if restarted:
        spout, recorder = successor(redis_server, spout.position(), spout.snapshot(), count=1)
    assert seen + ids(drain(spout, recorder)) == [id for id in written if id != deleted]


def test_deleted_before_the_second_read_is_not_missed(redis_server, redis_client):
    fill(redis_client, "1-0")
    redis_client.xdel("log", "1-0")
    spout, recorder = log_spout(redis_server)
    assert drain(spout, recorder) == []
    fill(redis_client, "2-0", "3-0", "4-0")
    redis_client.xdel("log", "3-0")
    assert ids(drain(spout, recorder)) == ["2-0", "4-0"]


def test_trimming_too_much_is_noticed_again_after_the_end_was_reached(redis_server, redis_client):
    spout, recorder = log_spout(redis_server, count=2)
    fill(redis_client, *[f"{n}-0" for n in range(1, 6)])
    redis_client.xdel("log", "4-0")
    assert ids(drain(spout, recorder)) == ["1-0", "2-0", "3-0", "5-0"]
    fill(redis_client, "6-0", "7-0")
    redis_client.xtrim("log", minid="7-0", approximate=False)
    with pytest.raises(MillraceError, match="at 5-1: 1 entries from there on"):
        spout.next_tuple()


@pytest.mark.parametrize("id", [f"5-{LARGEST_SEQUENCE + 1}", f"{LARGEST_MS + 1}-0"])
def test_an_id_that_does_not_fit(redis_server, redis_client, id):
    fill(redis_client, f"5-{LARGEST_SEQUENCE}", id)
    spout, recorder = log_spout(redis_server, count=1)
    spout.seek(5 << 22 | LARGEST_SEQUENCE)
    with pytest.raises(MillraceError, match=f"has an entry with the id {id}, and a position can hold ids up to"):
        drain(spout, recorder)


def test_continues_after_the_server_disconnected_it(redis_server, redis_client):
    spout, recorder = log_spout(redis_server)
    seen = []
    for n in range(1, 5):
        fill(redis_client, f"{n}-0")
        redis_client.client_kill_filter(_type="normal", skipme=True)
        try:
            seen += ids(drain(spout, recorder))
        except redis.exceptions.ConnectionError:
            seen += ids(drain(spout, recorder))
    assert seen == ["1-0", "2-0", "3-0", "4-0"]


def test_clear_errors(redis_server, redis_client):
    with pytest.raises(TopologyError, match=r"setting 'start' is '5-0'; it must be one of \$, 0"):
        log_spout(redis_server, start="5-0")
    redis_client.set("log", "no stream")
    spout, _ = log_spout(redis_server)
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        spout.next_tuple()


def test_lag_is_the_share_of_the_entries_behind_the_position(redis_server, redis_client):
    spout, recorder = log_spout(redis_server, parallelism=2, count=3)
    assert spout.lag() is None, "it has not read anything yet"
    fill(redis_client, *(f"{n}-0" for n in range(1, 11)))
    spout.next_tuple()
    unread = 10 - spout._seen
    assert unread > 0 and spout.lag() == unread // 2
    drain(spout, recorder)
    assert spout.lag() == 0


class Task:
    """The splits of one task, called in turns as an engine calls them."""

    def __init__(self, server, splits, **config):
        self.server, self.splits, self.config, self.shared, self.parts, self.ids = server, splits, config, {}, {}, []

    def begin(self, split, position=None):
        config = {"url": self.server.url, "key": "log", **self.config}
        part, _ = self.parts[split] = attach(RedisLogSpout, config, split, self.splits, False, clock=FakeClock(),
                                             shared_by_splits=self.shared)
        if position is not None:
            part._next_position = position
            part.seek(position)

    def turn(self):
        """Call every split once; returns the ids that they have emitted."""
        for part, _ in self.parts.values():
            part.next_tuple()
        taken = [id for _, recorder in self.parts.values() for id in ids(recorder.take())]
        self.ids += taken
        return taken

    def drain(self):
        while self.turn():
            pass


def reads(client):
    return client.info("commandstats").get("cmdstat_xrange", {"calls": 0})["calls"]


def test_splits_of_one_task_read_the_stream_together(redis_server, redis_client):
    written = [f"{n}-0" for n in range(1, 301)]
    fill(redis_client, *written)
    task = Task(redis_server, 8, count=60)
    for split in range(8):
        task.begin(split)
    before = reads(redis_client)
    task.drain()
    assert sorted(task.ids, key=written.index) == written
    assert reads(redis_client) - before <= 5 + 2 * 8, "five blocks, and the end of the stream, which each split may ask for"
    assert len({part.position() for part, _ in task.parts.values()}) == 1
    assert {part._seen for part, _ in task.parts.values()} == {300}


def test_a_split_that_comes_later_catches_up_by_itself(redis_server, redis_client):
    written = [f"{n}-0" for n in range(1, 401)]
    fill(redis_client, *written[:200])
    task, left = Task(redis_server, 4, count=20), Task(redis_server, 4, count=20)
    left.begin(3)
    left.turn()
    position = left.parts[3][0].position() - 7 * (1 << 22)  # in the middle of what would be a block of the others
    left.ids = [id for id in left.ids if int(id[:-2]) < position >> 22]
    for split in range(3):
        task.begin(split)
    task.drain()
    before = reads(redis_client)
    task.begin(3, position)
    while task.parts[3][0].position() < task.parts[0][0].position():
        task.turn()
    assert reads(redis_client) - before <= 10 + 3 * 10, "it has read ten blocks; the others have asked for new entries"
    fill(redis_client, *written[200:])
    before = reads(redis_client)
    task.drain()
    assert sorted(left.ids + task.ids, key=written.index) == written
    assert reads(redis_client) - before <= 10 + 2 * 4, "all read the new entries together"


def test_the_connection_of_a_task_ends_with_its_last_split(redis_server, redis_client, monkeypatch):
    task, closed = Task(redis_server, 2), []
    for split in range(2):
        task.begin(split)
    monkeypatch.setattr(task.shared["reader"]._redis, "close", lambda: closed.append(True))
    task.parts[0][0].close()
    assert not closed
    task.parts[1][0].close()
    assert closed


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_every_entry_comes_once_while_the_spout_is_scaled(redis_server, redis_client, guarantee):
    written = [f"{n}-0" for n in range(1, 601)]
    fill(redis_client, *written)
    COLLECTED.clear()
    cluster = LocalCluster(3, nodes=3)
    config = {"url": redis_server.url, "key": "log", "count": 20, "topology.guarantee": guarantee}
    cluster.submit(ReadLog, config=config)
    for par, so_far in ((3, 50), (2, 200), (4, 350)):
        cluster.run_until(lambda so_far=so_far: len(COLLECTED) > so_far)
        assert scale(cluster, "readlog", {"log": par})["outcome"] == "done"
    cluster.run_until(lambda: len(COLLECTED) >= len(written))
    assert sorted(COLLECTED, key=written.index) == written
