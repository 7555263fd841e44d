"""Checkpoint stores that are down, emptied or full; state restored from fragments; masters that resume from a store."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.config import BACKUP_BLOCKS, CHECKPOINTS, HEARTBEAT_TIMEOUT
from millrace.control.events import WaveRequested
from millrace.errors import UnknownName
from millrace.master.requests.client import ask
from millrace.model.graph import TaskId
from millrace.testing.processes import ProcessCluster
from millrace.workloads.audit import true_counts
from support.processes.forked import ForkedCluster
from support.processes.small_disk import mount_small_disk
from support.servers.redis_server import RedisServer, running_redis
from support.topologies.audited import SECONDS, StatefulStream, assert_all_exact, assert_never_less

pytestmark = pytest.mark.process
SLOTS = 4
NEVER = 3600.0  # seconds between waves, for streams whose waves are requested
GENTLE = {"rate": 1500, "interval": 0.1}
FURTHER = 200  # lines


def cluster_on(store: str | None, slots: int = SLOTS) -> ForkedCluster:
    """A cluster with a long heartbeat timeout: a late heartbeat on a busy machine must not be a second fault."""
    settings = {HEARTBEAT_TIMEOUT.key: SECONDS, **({CHECKPOINTS.key: store} if store else {})}
    return ForkedCluster(slots, nodes=slots, settings=settings)


def made_whole(cluster: ForkedCluster) -> ForkedCluster:
    """The cluster with all its workers, and without topologies or events of earlier tests."""
    cluster.make_whole(SLOTS, SECONDS)
    cluster.master.call(cluster.master.events.clear)
    return cluster


def events_with(stream: StatefulStream, text: str) -> list[str]:
    return [event["text"] for event in list(stream.master.events) if text in event["text"]]


def processed(stream: StatefulStream) -> float:
    return stream.master.observed[stream.name].total("count", "executed")


def assert_continues_without_waves(stream: StatefulStream) -> None:
    """Check that waves are abandoned, one event reports it, and words still arrive."""
    before, abandoned = processed(stream), stream.waves.abandoned
    stream.until(lambda: stream.waves.abandoned >= abandoned + 2 and processed(stream) > before)
    assert len(events_with(stream, "is abandoned and the stream continues")) == 1


# -- Redis ---------------------------------------------------------------------------------------------------------------


class RestartableRedis:
    """A Redis server that can restart with its data or empty."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server

    def shut_down(self) -> None:
        import redis

        with redis.Redis.from_url(self.server.url) as client:
            client.shutdown(save=True)
        assert self.server.process is not None
        self.server.process.wait(SECONDS)

    def come_back(self) -> None:
        self.server.start()

    def come_back_empty(self) -> None:
        self.server.stop()
        (self.server.directory / "dump.rdb").unlink(missing_ok=True)
        self.server.start()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableRedis]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield RestartableRedis(server)


@pytest.fixture(scope="module")
def shared_on_redis(redis: RestartableRedis) -> Iterator[ForkedCluster]:
    with cluster_on(redis.server.url) as cluster:
        yield cluster


@pytest.fixture
def on_redis(shared_on_redis: ForkedCluster) -> ForkedCluster:
    return made_whole(shared_on_redis)


def test_redis_is_down_for_a_while(on_redis: ProcessCluster, redis: RestartableRedis, tmp_path: Path) -> None:
    stream = StatefulStream(on_redis.master, tmp_path, **GENTLE)
    stream.wave(2)
    redis.shut_down()
    assert_continues_without_waves(stream)
    redis.come_back()
    stream.wave(1)
    assert stream.state.troubled == ""
    on_redis.kill(1)
    stream.wave(1)
    assert_all_exact(stream.finish_both())


def test_a_worker_is_killed_while_redis_is_down(on_redis: ProcessCluster, redis: RestartableRedis, tmp_path: Path) -> None:
    """Its state cannot be restored before Redis is back."""
    stream = StatefulStream(on_redis.master, tmp_path, **GENTLE)
    stream.wave(2)
    redis.shut_down()
    on_redis.kill(2)
    stream.until(lambda: bool(events_with(stream, "cannot restore the state of wave")))
    assert stream.state.status == "starting"
    redis.come_back()
    stream.wave(2)
    assert_all_exact(stream.finish_both())


def test_redis_comes_back_empty(on_redis: ProcessCluster, redis: RestartableRedis, tmp_path: Path) -> None:
    """Workers still have their state: the next wave writes all of it, and then a worker may be lost again."""
    stream = StatefulStream(on_redis.master, tmp_path, **GENTLE)
    stream.wave(2)
    redis.come_back_empty()
    stream.wave(2)
    on_redis.kill(0)
    stream.wave(1)
    assert_all_exact(stream.finish_both())


# -- a full disk --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "small"
    directory.mkdir()
    mount_small_disk(directory, "size=8m")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """Fill the disk; returns the file that fills it."""
    ballast = directory / "ballast"
    size = 1 << 20
    with ballast.open("wb", buffering=0) as file:
        while size:
            try:
                size = file.write(bytes(size))
            except OSError:
                size //= 2
    return ballast


def test_the_disk_is_full_for_a_while(small_disk: Path, tmp_path: Path) -> None:
    with cluster_on(str(small_disk / "checkpoints"), 2) as cluster:
        stream = StatefulStream(cluster.master, tmp_path / "output", **GENTLE)
        stream.wave(2)
        ballast = fill(small_disk)
        assert_continues_without_waves(stream)
        assert "Make room there" in stream.state.troubled
        ballast.unlink()
        stream.wave(1)
        cluster.kill(1)
        stream.wave(1)
        assert_all_exact(stream.finish_both())


# -- fragments -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared() -> Iterator[ForkedCluster]:
    with cluster_on(None) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ForkedCluster) -> ForkedCluster:
    return made_whole(shared)


class OnRequest(StatefulStream):
    """A stream whose waves come on request."""

    def __init__(self, master: Any, directory: Path, **options: Any) -> None:
        super().__init__(master, directory, **{**GENTLE, "interval": NEVER, **options})

    def wave(self, count: int = 1) -> None:
        target = self.waves.committed + count

        def request_until_committed() -> bool:
            if self.waves.committed < target and self.waves.phase == "idle":
                self.master.tell(WaveRequested(self.name))
            return self.waves.committed >= target and self.waves.phase == "idle" and self.state.status != "starting"

        self.until(request_until_committed)


def blobs_of(stream: StatefulStream) -> list[Path]:
    """The files of its last checkpoint, without the manifest."""
    root, manifest = Path(stream.master.checkpointing.place), stream.state.checkpoint
    assert manifest is not None
    return [root / name for name in sorted(manifest.blobs())]


@pytest.mark.parametrize(("blocks", "killed"), [(None, 1), ("1+2", 2)])
def test_state_is_restored_from_fragments(cluster: ProcessCluster, tmp_path: Path, blocks: str | None, killed: int) -> None:
    """The blobs in the store are damaged. If two workers are killed, they include holders of fragments."""
    stream = OnRequest(cluster.master, tmp_path, **{BACKUP_BLOCKS.key: blocks} if blocks else {})
    stream.advance(FURTHER)
    stream.wave(2)
    wave, epoch = stream.waves.committed, stream.state.epoch
    good = {path: path.read_bytes() for path in blobs_of(stream)}
    for path, content in good.items():
        path.write_bytes(bytes(len(content)))
    for slot in sorted(stream.slots())[:killed]:
        cluster.kill(slot)
    stream.until(lambda: stream.state.epoch >= epoch + killed and stream.state.status == "running")
    assert events_with(stream, f"every task has restored the state of wave {wave}")
    for path, content in good.items():
        path.write_bytes(content)
    assert_all_exact(stream.finish_both())


def test_key_groups_that_were_taken_over_are_restored_from_fragments_of_their_old_owner(cluster: ProcessCluster,
                                                                                        tmp_path: Path) -> None:
    """The old owner gives away all its key groups, so it needs none of its blobs; the new one has only the changes since."""
    stream = OnRequest(cluster.master, tmp_path)
    stream.advance(FURTHER)
    stream.wave(2)
    moved = [group for group, owner in enumerate(stream.state.key_groups["count"]) if owner == 1]
    ask(cluster.master.name, "regroup", topology=stream.name, component="count", owners=dict.fromkeys(map(str, moved), 2))
    stream.until(lambda: bool(events_with(stream, "key groups of count moved to count[2]")))
    stream.wave(1)
    manifest, epoch = stream.state.checkpoint, stream.state.epoch
    assert manifest is not None
    assert {ref.blob.split("/")[2] for group in moved for ref in manifest.chains("count").get(group, [])} >= {"1"}
    good = {path: path.read_bytes() for path in blobs_of(stream)}
    for path, content in good.items():
        path.write_bytes(bytes(len(content)))
    cluster.kill(stream.state.places[TaskId("count", 2)].slot)
    stream.until(lambda: stream.state.epoch > epoch and stream.state.status == "running")
    assert events_with(stream, f"every task has restored the state of wave {manifest.wave}")
    for path, content in good.items():
        path.write_bytes(content)
    assert_all_exact(stream.finish_both())


def test_without_backups_state_is_restored_from_the_store(cluster: ProcessCluster, tmp_path: Path) -> None:
    stream = OnRequest(cluster.master, tmp_path / "output", **{BACKUP_BLOCKS.key: "none"})
    stream.advance(FURTHER)
    stream.wave(2)
    shown = ask(cluster.master.name, "state", topology=stream.name)["topologies"][0]
    assert [component["fragments"] for component in shown["components"] if component["name"] == "count"] == [[]]
    hidden = {path: tmp_path / str(number) for number, path in enumerate(blobs_of(stream))}
    for path, other in hidden.items():
        shutil.move(path, other)
    cluster.kill(1)
    stream.until(lambda: bool(events_with(stream, "cannot restore the state of wave")))
    for path, other in hidden.items():
        shutil.move(other, path)
    stream.wave(1)
    assert_all_exact(stream.finish_both())


# -- commands ------------------------------------------------------------------------------------------------------------


def command(cluster: ProcessCluster, *arguments: str) -> Any:
    """Run a command; returns its exit code and the JSON that it prints."""
    done = CliRunner().invoke(app, [*arguments, "--cluster", cluster.master.name, "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(done.stdout)


def test_state_and_queries(cluster: ProcessCluster, tmp_path: Path) -> None:
    stream = StatefulStream(cluster.master, tmp_path, **GENTLE)
    stream.wave(1)
    cluster.kill(3)
    stream.wave(1)
    stream.drain()
    truth = true_counts(stream.positions())
    for word in sorted(truth)[:3]:
        code, answer = command(cluster, "state", "--query", "count", word, "--name", "counts")
        assert (code, answer["found"], answer["value"]) == (0, True, truth[word])
    code, answer = command(cluster, "state", "--query", "count", "no such word")  # in its only declared state
    assert (code, answer["found"], answer["state"]) == (1, False, "counts")
    with pytest.raises(UnknownName, match=r"'split' of 'stateful' has no keyed state"):
        ask(cluster.master.name, "query", topology=stream.name, component="split", key="x", state="counts")
    before = stream.waves.committed
    code, answer = command(cluster, "state", stream.name)
    shown = answer["topologies"][0]
    assert (code, shown["trouble"]) == (0, "") and before <= shown["wave"] <= stream.waves.committed
    count = next(component for component in shown["components"] if component["name"] == "count")
    assert count["bytes"] == sum(group["bytes"] for group in count["key_groups"]) > 0
    assert {group["task"] for group in count["key_groups"]} == {0, 1, 2}
    assert sum(group["keys"] for group in count["key_groups"]) == len(truth) == sum(t["keys"] for t in count["tasks"].values())
    assert all(group["dirty"] == 0 for group in count["key_groups"])  # drained and committed by a wave
    assert count["fragments"] and all(len(set(held["workers"])) == held["raw"] + held["check"] for held in count["fragments"])
    stream.end()


# -- another master resumes ------------------------------------------------------------------------------------------------


def stop_cleanly(cluster: ProcessCluster, streams: Sequence[StatefulStream]) -> None:
    for stream in streams:
        cluster.master.kill(stream.name, wait=SECONDS)
    assert cluster.master.wait_until(lambda: not cluster.master.state.topologies, SECONDS)


def kill_all(cluster: ProcessCluster, streams: Sequence[StatefulStream]) -> None:
    """Kill all workers at once, so that the master ends without draining anything."""
    for process in cluster.processes.values():
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("end", [stop_cleanly, kill_all])
def test_another_master_resumes(cluster: ProcessCluster, tmp_path: Path,
                                end: Callable[[ProcessCluster, Sequence[StatefulStream]], None]) -> None:
    checks = {"exactly-once": assert_all_exact, "at-least-once": assert_never_less}
    options = {guarantee: {"name": f"{end.__name__}-{guarantee}", "guarantee": guarantee, **GENTLE} for guarantee in checks}
    with cluster_on(cluster.master.checkpointing.place, 2) as first:
        streams = [StatefulStream(first.master, tmp_path / guarantee, **options[guarantee]) for guarantee in checks]
        for stream in streams:
            stream.advance(FURTHER)
            stream.wave(2)
        reached = [stream.waves.committed for stream in streams]
        end(first, streams)
    again = [StatefulStream(cluster.master, tmp_path / guarantee, resume=True, **options[guarantee]) for guarantee in checks]
    for stream, wave in zip(again, reached, strict=True):
        stream.wave(1)
        assert stream.waves.committed > wave and min(stream.positions().values()) > FURTHER
    assert len(events_with(again[0], "every task has restored the state of wave")) >= len(again)
    for stream, check in zip(again, checks.values(), strict=True):
        check(stream.finish_both())
