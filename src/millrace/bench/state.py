"""`millrace bench state`: the speed of erasure coding, of restoring state, and the cost of waves.

State is restored from fragments in the memory of ten other processes, from a Redis server on this host, and from a file whose
pages are not in memory, in turn, the best of three each. The time is from the request until all bytes are there and their sum
is checked.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import zmq
from rich.console import Console

from millrace.bench.redis_server import redis_server
from millrace.bench.results import keep
from millrace.bench.wave_cost import KEYS, measure_wave_cost
from millrace.errors import MillraceError, NotEnoughFragments
from millrace.runtime.fragments.exchange import FragmentExchange
from millrace.runtime.fragments.links import Address
from millrace.runtime.wire.transport import Keys, boot_id
from millrace.state.erasure import Code

R, C = 7, 3
MB = 1_000_000
SIZES = (2, 10, 30, 40, 80, 200)
INSTANCES = (1, 2, 4, 8, 16)
INSTANCE_MB = 10
CODE_MB = 64
RUNS = 3
START_SECONDS = 60.0
HELD_BYTES = 2 << 30
DISK = Path("/var/tmp")


def run_state_bench(live: bool, quick: bool = False) -> dict[str, Any]:
    """Returns the object of `bench state --json`. `quick`: small sizes only, to see that it works."""
    console = Console(stderr=not live)
    result: dict[str, Any] = {"shape": [R, C], "runs": RUNS, **code_speed(8 if quick else CODE_MB)}
    console.print(f"one core, {R} + {C}: cut {result['encode_mb_s']:,.0f} MB/s, rebuild with {C} lost "
                  f"{result['decode_mb_s']:,.0f} MB/s")
    sizes, instances = (SIZES[:2], INSTANCES[:2]) if quick else (SIZES, INSTANCES)
    with tempfile.TemporaryDirectory(prefix="mr-state-") as base, restore_sources(Path(base)) as (sources, skipped):
        result["skipped"] = skipped
        for reason in skipped.values():
            console.print(f"[yellow]{reason}")
        result["restore_s"] = {}
        for mb in sizes:
            result["restore_s"][mb] = measured(sources, [os.urandom(mb * MB)])
            console.print(f"{mb:4} MB: {as_text(result['restore_s'][mb])}")
        result["restore_instances_s"] = {}
        for count in instances:
            states = [os.urandom(INSTANCE_MB * MB) for _ in range(count)]
            result["restore_instances_s"][count] = measured(sources, states)
            console.print(f"{count:2} x {INSTANCE_MB} MB: {as_text(result['restore_instances_s'][count])}")
    waves = measure_wave_cost(2.0 if quick else 6.0, 1 if quick else 3, console)
    console.print(f"a wave every second, {KEYS:,} keys: {waves['wave_cost']:.1%} of the throughput")
    result.update(waves)
    console.print(f"kept in {keep('state', result, quick)}")
    return result


def code_speed(mb: int) -> dict[str, float]:
    """MB of state per second of one core, with as many raw blocks lost as the code allows."""
    code, data = Code(R, C), os.urandom(mb * MB)
    blocks = dict(enumerate(code.encode(data)))
    kept = {index: block for index, block in blocks.items() if index >= C}
    return {"encode_mb_s": round(mb / best(lambda: code.encode(data), time.process_time)),
            "decode_mb_s": round(mb / best(lambda: code.decode(kept, len(data)), time.process_time))}


def best(action: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    return min(timed(action, clock) for _ in range(RUNS))


def timed(action: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    action()
    return clock() - start


def as_text(times: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in times.items() if seconds is not None)


class RestoreSource(Protocol):
    """A place that state is restored from."""

    def save(self, states: Sequence[bytes]) -> None: ...

    def make_ready(self) -> None:
        """Prepare for a restore."""

    def restore(self) -> list[Any]:
        """Return everything that was saved, with its sums checked."""

    def clear(self) -> None: ...


def measured(sources: dict[str, RestoreSource | None], states: Sequence[bytes]) -> dict[str, float | None]:
    """Seconds for all the states, by source. The sources take turns, so that a busy moment of the machine hits them all."""
    present = {name: source for name, source in sources.items() if source is not None}
    times: dict[str, list[float]] = {name: [] for name in present}
    for source in present.values():
        source.save(states)
    for _ in range(RUNS):
        for name, source in present.items():
            times[name].append(one_restore(name, source, states))
    for source in present.values():
        source.clear()
    return {name: round(min(times[name]), 5) if name in times else None for name in sources}


def one_restore(name: str, source: RestoreSource, states: Sequence[bytes]) -> float:
    source.make_ready()
    start = time.perf_counter()
    restored = source.restore()
    seconds = time.perf_counter() - start
    if len(restored) != len(states) or any(back != state for back, state in zip(restored, states)):
        raise MillraceError(f"the state restored from {name} differs from the state that was saved")
    return seconds


@contextmanager
def restore_sources(base: Path) -> Iterator[tuple[dict[str, RestoreSource | None], dict[str, str]]]:
    """Every source that this machine has, and for each of the others how to get it."""
    with fragments(base) as from_fragments, redis_server(base) as (client, hint), files_on_disk() as from_files:
        from_redis = RedisSource(client) if client is not None else None
        sources: dict[str, RestoreSource | None] = {"fragments": from_fragments, "redis": from_redis, "directory": from_files}
        yield sources, {"redis": hint} if hint else {}


# --- fragments


def hold(name: str, directory: str, keys: tuple[bytes, bytes], pipe: Connection) -> None:
    """Holds fragments in a separate process until the pipe closes."""
    with zmq.Context() as context:
        exchange = FragmentExchange(context, name, Path(directory), "", Keys(*keys), boot_id(), lambda call: call(),
                                    limit=HELD_BYTES)
        pipe.send(tuple(exchange.endpoints))
        pipe.poll(None)
        exchange.close()


class FragmentSource:
    """Fragments held by R + C other processes, over ipc."""

    def __init__(self, exchange: FragmentExchange, holders: list[tuple[int, Address]]) -> None:
        self._exchange, self._holders = exchange, holders
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._blobs: list[str] = []

    def save(self, states: Sequence[bytes]) -> None:
        self._blobs = [f"bench/state/{task}/1-1" for task in range(len(states))]
        for blob, state in zip(self._blobs, states):
            self._exchange.save(blob, [state], R, C, self._holders, self._answers.put)
            held = self._answers.get()
            if held < R + C:
                raise MillraceError(f"only {held} of {R + C} fragments could be placed")

    def make_ready(self) -> None:
        """Do nothing: fragments are in memory."""

    def restore(self) -> list[Any]:
        states: dict[str, Any] = {}
        for blob in self._blobs:
            self._exchange.fetch(blob, R, C, self._holders, partial(self._fetched, blob))
        for _ in self._blobs:
            blob, state = self._answers.get()
            if isinstance(state, NotEnoughFragments):
                raise state
            states[blob] = state
        return [states[blob] for blob in self._blobs]

    def _fetched(self, blob: str, state: memoryview | NotEnoughFragments) -> None:
        self._answers.put((blob, state))

    def clear(self) -> None:
        self._exchange.drop("bench", [address for _, address in self._holders], self._answers.put)
        self._answers.get()


@contextmanager
def fragments(base: Path) -> Iterator[FragmentSource]:
    keys, spawn = Keys.make(), multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(R + C):
        ours, theirs = spawn.Pipe()
        processes.append(spawn.Process(target=hold, args=(f"h{number}", str(base), (keys.public, keys.secret), theirs)))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    with zmq.Context() as context:
        exchange = FragmentExchange(context, "restoring", base, "", keys, boot_id(), lambda call: call())
        try:
            yield FragmentSource(exchange, [(index, _address(pipe)) for index, pipe in enumerate(pipes)])
        finally:
            exchange.close()
            for pipe, process in zip(pipes, processes):
                pipe.close()
                process.join()


def _address(pipe: Connection) -> Address:
    if not pipe.poll(START_SECONDS):
        raise MillraceError(f"a process that holds fragments did not start within {START_SECONDS:g} s")
    return Address(*pipe.recv())


# --- Redis


class RedisSource:
    """One GET after the other on one connection, by the client that Millrace uses."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._sums: list[int] = []

    def save(self, states: Sequence[bytes]) -> None:
        self._sums = [zlib.crc32(state) for state in states]
        for task, state in enumerate(states):
            self._client.set(f"state:{task}", state)

    def make_ready(self) -> None:
        self._client.ping()

    def restore(self) -> list[Any]:
        return [_checked(self._client.get(f"state:{task}"), total) for task, total in enumerate(self._sums)]

    def clear(self) -> None:
        self._client.flushall()


# --- files


class FileSource:
    """One sequential read of each file; its pages are dropped from memory before."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sums: dict[Path, int] = {}

    def save(self, states: Sequence[bytes]) -> None:
        for task, state in enumerate(states):
            path = self._directory / f"state-{task}"
            with path.open("wb") as file:
                file.write(state)
                file.flush()
                os.fsync(file.fileno())
            self._sums[path] = zlib.crc32(state)

    def make_ready(self) -> None:
        for path in self._sums:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def restore(self) -> list[Any]:
        return [_checked(path.read_bytes(), total) for path, total in self._sums.items()]

    def clear(self) -> None:
        for path in self._sums:
            path.unlink()
        self._sums.clear()


@contextmanager
def files_on_disk() -> Iterator[FileSource]:
    """Files on a disk: /tmp may be memory, /var/tmp hardly ever is."""
    with tempfile.TemporaryDirectory(prefix="mr-state-", dir=DISK if DISK.is_dir() else None) as directory:
        yield FileSource(Path(directory))


def _checked(state: bytes, total: int) -> bytes:
    if zlib.crc32(state) != total:
        raise MillraceError("a restored state has another checksum than when it was saved")
    return state
