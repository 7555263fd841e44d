from __future__ import annotations

import contextlib
import itertools
import json
import sys
from typing import Any, ClassVar

import pytest
import redis
from recording import attach, drain, rows

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState
from millrace.api.topology import Topology
from millrace.connectors.redis import RedisListSpout, RedisSink, RedisStreamSpout, _RedisSpout
from millrace.control.events import Rescaled
from millrace.errors import EncodingError, MillraceError, TopologyError
from millrace.testing.local_cluster import LocalCluster
from support.scaling.scaled_runs import par_of, scaled

pytestmark = pytest.mark.redis
PROCESSING = "in:processing:test:under-test"


class FakeClock:
    """A clock that skips the pause after an empty read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def list_spout(server, task_index=0, parallelism=1, tracked=True, **config):
    config = {"url": server.url, "key": "in", **config}
    return attach(RedisListSpout, config, task_index, parallelism, tracked, clock=FakeClock())


def stream_spout(server, task_index=0, parallelism=1, tracked=True, **config):
    config = {"url": server.url, "key": "in", "group": "g", **config}
    return attach(RedisStreamSpout, config, task_index, parallelism, tracked, clock=FakeClock())


def firsts(emits):
    return [emitted.values[0] for emitted in emits]


def ack_all(spout, emits):
    for emitted in emits:
        spout.ack(emitted.tup_id)


# ---- lists ----


def test_list_in_order_and_done_when_acked(redis_server, redis_client):
    redis_client.rpush("in", *[f"v{n}" for n in range(250)])
    spout, recorder = list_spout(redis_server, count=100)
    emits = drain(spout, recorder)
    assert firsts(emits) == [f"v{n}" for n in range(250)]
    assert redis_client.llen("in") == 0
    assert redis_client.llen(f"{PROCESSING}:0") == 250
    ack_all(spout, emits)
    drain(spout, recorder)
    assert redis_client.llen(f"{PROCESSING}:0") == 0


def test_list_equal_values_are_all_kept(redis_server, redis_client):
    redis_client.rpush("in", "same", "same", "same")
    spout, recorder = list_spout(redis_server)
    emits = drain(spout, recorder)
    spout.ack(emits[0].tup_id)
    drain(spout, recorder)
    assert redis_client.lrange(f"{PROCESSING}:0", 0, -1) == ["same", "same"]


def test_list_failed_is_emitted_again(redis_server, redis_client):
    redis_client.rpush("in", "a", "b")
    spout, recorder = list_spout(redis_server)
    emits = drain(spout, recorder)
    spout.fail(emits[1].tup_id)
    again = recorder.take()
    assert (firsts(again), again[0].tup_id) == (["b"], emits[1].tup_id)
    ack_all(spout, emits)
    drain(spout, recorder)
    assert redis_client.llen(f"{PROCESSING}:0") == 0


def test_list_abandoned_values_are_removed(redis_server, redis_client):
    redis_client.rpush("in", "poison")
    spout, recorder = list_spout(redis_server)
    emits = drain(spout, recorder)
    for _ in range(spout.max_fails + 1):
        spout.fail(emits[0].tup_id)
    recorder.take()
    drain(spout, recorder)
    assert redis_client.llen(f"{PROCESSING}:0") == 0


def test_list_next_incarnation_takes_over_unacked_values(redis_server, redis_client):
    redis_client.rpush("in", "a", "b", "c")
    spout, recorder = list_spout(redis_server)
    emits = drain(spout, recorder)
    spout.ack(emits[1].tup_id)
    drain(spout, recorder)  # sends the ack; then the worker dies, without close
    redis_client.rpush("in", "d")
    assert firsts(drain(*list_spout(redis_server))) == ["a", "c", "d"]


def test_list_nothing_is_taken_over_before_the_first_call(redis_server, redis_client):
    redis_client.rpush("in", "a")
    old, recorder = list_spout(redis_server)
    emits = drain(old, recorder)
    new = list_spout(redis_server)  # created while the old spout still works
    ack_all(old, emits)
    old.close()
    assert drain(*new) == []


def test_list_task_0_requeues_values_of_tasks_that_no_longer_exist(redis_server, redis_client):
    redis_client.rpush("in", "a", "b", "c")
    assert firsts(drain(*list_spout(redis_server, task_index=2, parallelism=3))) == ["a", "b", "c"]
    assert firsts(drain(*list_spout(redis_server, task_index=0, parallelism=3))) == []  # it may still be alive
    assert firsts(drain(*list_spout(redis_server, task_index=0, parallelism=2))) == ["a", "b", "c"]


def test_list_untracked_values_are_removed_at_once(redis_server, redis_client):
    redis_client.rpush("in", "a", "b")
    assert firsts(drain(*list_spout(redis_server, tracked=False))) == ["a", "b"]
    assert redis_client.keys("*") == []


@pytest.mark.parametrize("carried_out", [True, False])
def test_list_lost_reply_to_a_read_loses_nothing(redis_server, redis_client, monkeypatch, carried_out):
    redis_client.rpush("in", "a", "b", "b")
    spout, recorder = list_spout(redis_server)
    spout.next_tuple()
    assert firsts(recorder.emits) == ["a"]
    break_once(monkeypatch, spout, "_read", carried_out)
    with pytest.raises(ConnectionError):
        spout.next_tuple()
    spout._backlog.clear()
    assert sorted(firsts(drain(spout, recorder))) == ["a", "b", "b"]


@pytest.mark.parametrize("carried_out", [True, False])
def test_list_lost_reply_to_an_ack_does_not_remove_another(redis_server, redis_client, monkeypatch, carried_out):
    redis_client.rpush("in", "same", "same")
    spout, recorder = list_spout(redis_server)
    emits = drain(spout, recorder)
    spout.ack(emits[0].tup_id)
    done = list(spout._done)
    break_once(monkeypatch, spout, "_send_done", carried_out)
    with pytest.raises(ConnectionError):
        spout.next_tuple()
    spout._done[:] = done
    assert drain(spout, recorder) == []
    assert redis_client.lrange(f"{PROCESSING}:0", 0, -1) == ["same"]


def break_once(monkeypatch, spout, name, carried_out):
    """Make the next call of a method fail as if the connection broke, before or after the server executed it."""
    original = getattr(spout, name)

    def broken():
        monkeypatch.setattr(spout, name, original)
        if carried_out:
            original()
        raise ConnectionError("connection reset")

    monkeypatch.setattr(spout, name, broken)


# ---- streams ----


def test_stream_in_order_and_done_when_acked(redis_server, redis_client):
    ids = [redis_client.xadd("in", {"n": n, "text": f"t{n}"}) for n in range(250)]
    spout, recorder = stream_spout(redis_server)
    emits = drain(spout, recorder)
    assert [emitted.values for emitted in emits] == [(id, {"n": str(n), "text": f"t{n}"}) for n, id in enumerate(ids)]
    assert [emitted.tup_id for emitted in emits] == ids
    assert redis_client.xpending("in", "g")["pending"] == 250
    ack_all(spout, emits)
    drain(spout, recorder)
    assert redis_client.xpending("in", "g")["pending"] == 0


def test_stream_tasks_share_the_group(redis_server, redis_client):
    redis_client.xadd("in", {"n": 0})
    first, second = stream_spout(redis_server, 0, 2), stream_spout(redis_server, 1, 2)
    assert len(drain(*first)) == 1
    redis_client.xadd("in", {"n": 1})
    assert [emitted.values[1] for emitted in drain(*second)] == [{"n": "1"}]
    assert drain(*first) == []
    assert {c["name"] for c in redis_client.xinfo_consumers("in", "g")} == {"0", "1"}


def test_stream_next_incarnation_takes_over_unacked_entries(redis_server, redis_client):
    ids = [redis_client.xadd("in", {"n": n}) for n in range(5)]
    spout, recorder = stream_spout(redis_server, count=2)
    emits = drain(spout, recorder)
    spout.ack(emits[1].tup_id)
    drain(spout, recorder)
    redis_client.xdel("in", ids[2])  # deleted while it was in flight: nothing left to emit
    ids.append(redis_client.xadd("in", {"n": 5}))
    again, recorder = stream_spout(redis_server, count=2)
    emits = drain(again, recorder)
    assert firsts(emits) == [ids[0], ids[3], ids[4], ids[5]]
    ack_all(again, emits)
    drain(again, recorder)
    assert redis_client.xpending("in", "g")["pending"] == 0


def test_stream_task_0_takes_over_consumers_that_no_longer_exist(redis_server, redis_client):
    ids = [redis_client.xadd("in", {"n": n}) for n in range(5)]
    assert len(drain(*stream_spout(redis_server, 1, 2))) == 5
    assert firsts(drain(*stream_spout(redis_server, 0, 1, count=2))) == ids
    assert [c["name"] for c in redis_client.xinfo_consumers("in", "g")] == ["0"]


def test_stream_failed_is_emitted_again(redis_server, redis_client):
    redis_client.xadd("in", {"n": 0})
    spout, recorder = stream_spout(redis_server)
    emits = drain(spout, recorder)
    spout.fail(emits[0].tup_id)
    assert recorder.take() == emits


def test_stream_lost_reply_loses_nothing(redis_server, redis_client, monkeypatch):
    spout, recorder = stream_spout(redis_server)
    first = redis_client.xadd("in", {"n": 0})
    assert firsts(drain(spout, recorder)) == [first]
    second = redis_client.xadd("in", {"n": 1})
    break_once(monkeypatch, spout, "_read", carried_out=True)
    with pytest.raises(ConnectionError):
        spout.next_tuple()
    spout._backlog.clear()
    assert firsts(drain(spout, recorder)) == [second]


def test_stream_start_at_the_end_and_untracked(redis_server, redis_client):
    redis_client.xadd("in", {"n": 0})
    spout, recorder = stream_spout(redis_server, start="$", tracked=False)
    assert drain(spout, recorder) == []
    redis_client.xadd("in", {"n": 1})
    assert [emitted.values[1] for emitted in drain(spout, recorder)] == [{"n": "1"}]
    assert redis_client.xpending("in", "g")["pending"] == 0


@pytest.mark.parametrize("make", [list_spout, stream_spout])
def test_spouts_continue_after_the_server_disconnected_them(redis_server, redis_client, make):
    spout, recorder = make(redis_server)
    seen = []
    for n in range(4):
        redis_client.rpush("in", f"v{n}") if make is list_spout else redis_client.xadd("in", {"v": n})
        redis_client.client_kill_filter(_type="normal", skipme=True)
        for _ in range(3):
            with contextlib.suppress(redis.exceptions.ConnectionError):
                seen += drain(spout, recorder)
                break
    assert [emitted.values[0] for emitted in seen] == [f"v{n}" for n in range(4)] or \
        [emitted.values[1] for emitted in seen] == [{"v": str(n)} for n in range(4)]


# ---- sink ----


def sink(server, mode, **config):
    return attach(RedisSink, {"url": server.url, "key": "out", "mode": mode, **config})[0]


def test_sink_list(redis_server, redis_client):
    sink(redis_server, "list").process_rows(rows("word count", [["tea", 1], ["fish", [2, None]]]))
    assert [json.loads(value) for value in redis_client.lrange("out", 0, -1)] == [
        {"word": "tea", "count": 1}, {"word": "fish", "count": [2, None]}]


def test_sink_hash_keeps_the_last(redis_server, redis_client):
    bolt = sink(redis_server, "hash")
    bolt.process_rows(rows("word count", [["tea", 1], ["tea", 2], ["fish", True]]))
    bolt.process_rows([])
    assert redis_client.hgetall("out") == {"tea": "2", "fish": "true"}
    bolt.close()


def test_sink_counter_adds(redis_server, redis_client):
    bolt = sink(redis_server, "counter")
    bolt.process_rows(rows("word n", [["tea", 1], ["fish", 5], ["tea", 2]]))
    bolt.process_rows(rows("word n", [["tea", -1]]))
    assert redis_client.hgetall("out") == {"tea": "2", "fish": "5"}
    with pytest.raises(EncodingError, match="adds whole numbers"):
        bolt.process_rows(rows("word n", [["tea", 1], ["tea", 1.5]]))
    with pytest.raises(EncodingError, match="adds 64-bit numbers; the sum for 'fish' is 9223372036854775808"):
        bolt.process_rows(rows("word n", [["tea", 1], ["fish", 2**62], ["fish", 2**62]]))
    assert redis_client.hgetall("out") == {"tea": "2", "fish": "5"}


def test_sink_stream(redis_server, redis_client):
    sink(redis_server, "stream").process_rows(rows("word count tags", [["tea", 1, ["hot"]]]))
    assert [fields for _, fields in redis_client.xrange("out")] == [{"word": "tea", "count": "1", "tags": '["hot"]'}]


def test_a_chunk_is_written_wholly_or_not_at_all(redis_server, redis_client):
    redis_client.hset("out", "fish", "many")
    bolt = sink(redis_server, "counter")
    with pytest.raises(Exception, match="not an integer"):
        bolt.process_rows(rows("word n", [["fish", 1]]))
    assert redis_client.hgetall("out") == {"fish": "many"}


def test_staged_values_equal_those_written_directly(redis_server, redis_client):
    chunk = rows("a b c d", [["tea", 1, 1.5, b"\x00\xff:3:"], ["größe", True, None, [1, {"x": "y"}]]])
    raw = redis.Redis.from_url(redis_server.url)
    for mode in ("list", "hash", "stream"):
        data = chunk if mode != "list" else [row._replace(d="text") for row in chunk]
        sink(redis_server, mode, key="direct").process_rows(data)
        staged = attach(RedisSink, {"url": redis_server.url, "key": "staged", "mode": mode}, exactly_once=True, epoch=1)[0]
        staged.process_rows(data)
        assert not raw.exists("staged")
        staged.prepare(1)
        staged.commit(1)
        look = {"list": lambda key: raw.lrange(key, 0, -1), "hash": raw.hgetall,
                "stream": lambda key: [fields for _, fields in raw.xrange(key)]}[mode]
        assert look("staged") == look("direct") != []
        raw.flushall()
    raw.close()


def test_a_refused_command_stays_staged_and_earlier_ones_are_not_repeated(redis_server, redis_client):
    redis_client.hset("out", "fish", "many")
    bolt = attach(RedisSink, {"url": redis_server.url, "key": "out", "mode": "counter"}, exactly_once=True, epoch=1)[0]
    bolt.process_rows(rows("word n", [["tea", 1], ["fish", 5], ["milk", 2]]))
    bolt.prepare(1)
    for _ in range(2):
        with pytest.raises(redis.exceptions.ResponseError, match="not an integer"):
            bolt.commit(1)
        assert redis_client.hgetall("out") == {"tea": "1", "fish": "many"}
    redis_client.hset("out", "fish", "3")
    bolt.commit(1)
    assert redis_client.hgetall("out") == {"tea": "1", "fish": "8", "milk": "2"}


def test_staged_rows_that_the_server_has_lost_are_noticed(redis_server, redis_client):
    bolt = attach(RedisSink, {"url": redis_server.url, "key": "out", "mode": "list"}, exactly_once=True, epoch=1)[0]
    bolt.process_rows(rows("word", [["tea"]]))
    redis_client.flushall()
    with pytest.raises(MillraceError, match=r"rows staged in Redis under millrace:staged:\{test\+under-test\} are missing"):
        bolt.process_rows(rows("word", [["fish"]]))
    with pytest.raises(MillraceError, match="must roll back to its last committed wave"):
        bolt.prepare(1)


# ---- settings ----


def test_clear_errors(redis_server, monkeypatch):
    with pytest.raises(TopologyError, match="'mode' is 'heap'; it must be one of counter, hash, list, stream"):
        sink(redis_server, "heap")
    with pytest.raises(TopologyError, match="needs the setting 'group'"):
        attach(RedisStreamSpout, {"url": redis_server.url, "key": "in"})
    with pytest.raises(MillraceError, match=r"no Redis answers at redis://127.0.0.1:1/0") as caught:
        attach(RedisSink, {"url": "redis://:secret@127.0.0.1:1/0", "key": "k", "mode": "list"})
    assert "secret" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(TopologyError, match=r"pip install millrace\[redis\]"):
        sink(redis_server, "list")


# ---- other numbers of tasks ----

SEEN: list[str] = []


class Collect(Bolt):
    def process(self, tup):
        SEEN.append(tup.values[0] if tup.values._fields == ("value",) else tup.values.data["n"])


class FromList(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.chunk.tuples": 3, "key": "in", "count": 2}
    entries = RedisListSpout.spec(par=1)
    collect = Collect.spec(inputs={entries: Grouping.SHUFFLE}, par=2)


class FromStream(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.chunk.tuples": 3, "key": "in", "group": "g", "count": 2}
    entries = RedisStreamSpout.spec(par=1)
    collect = Collect.spec(inputs={entries: Grouping.SHUFFLE}, par=2)


class Count(Collect):
    counts = CounterState()

    def process(self, tup):
        self.counts[tup.values.id] += 1
        super().process(tup)


class Counted(Topology):
    """With state, so that there are waves."""

    config: ClassVar[dict[str, Any]] = FromStream.config
    entries = RedisStreamSpout.spec(par=1)
    count = Count.spec(inputs={entries: Grouping.fields("id")}, par=2)


def add(client, make, *numbers):
    for n in numbers:
        client.rpush("in", n) if make in (list_spout, FromList) else client.xadd("in", {"n": n})


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("topology", [FromList, FromStream, Counted])
def test_every_entry_comes_once_while_the_tasks_change(redis_server, redis_client, monkeypatch, topology, guarantee):
    SEEN.clear()
    cluster, name, numbers = LocalCluster(3, nodes=3), topology.__name__.lower(), itertools.count()
    monkeypatch.setattr(_RedisSpout, "clock", staticmethod(cluster.clock.now))
    cluster.submit(topology, config={"url": redis_server.url, "topology.guarantee": guarantee})

    def run_until(condition):
        """Entries come all the time."""
        cluster.run_until(lambda: add(redis_client, topology, next(numbers), next(numbers)) or condition(), seconds=10.0)

    for tasks in (3, 2, 5, 1):
        more = len(SEEN) + 50
        run_until(lambda more=more: len(SEEN) > more)
        cluster.tell(Rescaled(name, {"entries": tasks}))
        run_until(lambda: scaled(cluster, name))
        assert par_of(cluster, name)["entries"] == tasks
    cluster.run(3.0)
    assert sorted(map(int, SEEN)) == list(range(next(numbers)))
    if topology is FromList:
        assert redis_client.keys("in:processing:*:entries:[0-9]") == []
    else:
        assert redis_client.xpending("in", "g")["pending"] == 0


def slot_of(cluster, task):
    return next(place.slot for name, place in cluster.master.topologies["fromstream"].places.items() if str(name) == task)


def read_by(client, consumer):
    return sum(each["pending"] for each in client.xinfo_consumers("in", "g") if each["name"] == consumer)


def test_a_new_task_reads_nothing_before_all_workers_know_it(redis_server, redis_client, monkeypatch):
    cluster = LocalCluster(4, nodes=4)
    monkeypatch.setattr(_RedisSpout, "clock", staticmethod(cluster.clock.now))
    cluster.submit(FromStream, config={"url": redis_server.url})
    cluster.run(0.3)
    deaf = slot_of(cluster, "collect[0]")
    cluster.deaf.add(deaf)
    cluster.tell(Rescaled("fromstream", {"entries": 2}))
    cluster.run(0.3)
    cluster.holding.add(deaf)  # nothing is acked
    add(redis_client, FromStream, *range(100))
    cluster.run(0.3)
    assert read_by(redis_client, "0") and not read_by(redis_client, "1")
    cluster.holding.discard(deaf)
    cluster.hear(deaf)
    cluster.run_until(lambda: scaled(cluster, "fromstream"))
    add(redis_client, FromStream, *range(100))
    cluster.run_until(lambda: any(each["name"] == "1" for each in redis_client.xinfo_consumers("in", "g")))


def test_a_task_that_retires_reads_nothing_more(redis_server, redis_client, monkeypatch):
    cluster = LocalCluster(4, nodes=4)
    monkeypatch.setattr(_RedisSpout, "clock", staticmethod(cluster.clock.now))
    cluster.submit(FromStream, config={"url": redis_server.url}, par={"entries": 2})
    cluster.run(0.3)
    held = {slot_of(cluster, "collect[0]"), slot_of(cluster, "collect[1]")}
    assert slot_of(cluster, "entries[1]") not in held
    cluster.holding |= held
    add(redis_client, FromStream, *range(20))
    cluster.run(0.05)
    cluster.tell(Rescaled("fromstream", {"entries": 1}))
    cluster.run(0.05)
    before = read_by(redis_client, "1")
    add(redis_client, FromStream, *range(20, 100))
    cluster.run(0.2)
    assert before and read_by(redis_client, "1") == before
    cluster.holding -= held
    cluster.run_until(lambda: scaled(cluster, "fromstream"))
    cluster.run(0.3)
    assert redis_client.xpending("in", "g")["pending"] == 0


@pytest.mark.parametrize("make", [list_spout, stream_spout])
def test_what_a_task_leaves_unacked_when_it_ends_for_good_goes_to_task_0(redis_server, redis_client, make):
    add(redis_client, make, *range(20))
    first, second = make(redis_server, 0, 2, count=5), make(redis_server, 1, 2, count=5)
    emits = {}
    for spout, recorder in (first, second):
        for _ in range(3):
            spout.next_tuple()
        emits[spout] = recorder.take()
    assert len(emits[second[0]]) >= 5
    for emitted in emits[second[0]][:2]:
        second[0].ack(emitted.tup_id)
    second[0].close()
    spout, recorder = first
    spout.parallelism = 1
    left = [emitted.values for emitted in emits[second[0]][2:]]
    expected = 20 - 2 - len(emits[spout])
    for _ in range(10):  # a second passes in each
        spout.next_tuple()
    later = [emitted.values for emitted in recorder.take()]
    assert len(later) == expected
    assert all(values in later for values in left)


def test_a_new_task_is_not_taken_for_one_that_is_gone(redis_server, redis_client):
    add(redis_client, stream_spout, *range(20))
    first, recorder = stream_spout(redis_server, 0, 1, count=5)
    first.next_tuple()
    added, other = stream_spout(redis_server, 1, 2, count=5)
    added.next_tuple()
    first.parallelism = 2
    assert len(recorder.take() + drain(first, recorder) + other.take() + drain(added, other)) == 20


# ---- lag ----


class SetClock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("make", [list_spout, stream_spout])
def test_lag_is_the_share_of_what_nobody_has_read_and_what_is_read(redis_server, redis_client, make):
    spout, _ = make(redis_server, parallelism=2, count=10)
    spout.clock = SetClock()
    for n in range(100):
        redis_client.rpush("in", n) if make is list_spout else redis_client.xadd("in", {"n": n})
    assert spout.lag() == 50
    for _ in range(3):  # a list is asked for one entry first, then for more
        spout.next_tuple()
    taken = 100 - (redis_client.llen("in") if make is list_spout else redis_client.xinfo_groups("in")[0]["lag"])
    assert 0 < taken < 100 and spout.lag() == 50, "the server is not asked again so soon"
    spout.clock.now += 1.5
    assert spout.lag() == (100 - taken) // 2


def test_lag_of_a_server_that_is_away(redis_server):
    spout, _ = list_spout(redis_server)
    spout.clock = SetClock()
    spout._redis.close()
    spout._redis = redis.Redis(port=1)
    with pytest.raises(redis.exceptions.ConnectionError):
        spout.lag()
    assert spout.lag() is None, "it is not asked again so soon"
