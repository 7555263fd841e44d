"""The contract of every two-phase sink: each committed row is visible once, through crashes and zombies."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.errors import MillraceError, RowsLost
from support.examples import examples
from support.suites.two_phase import Engine, Files, Redis, Sql, Target, Wire

EVERYWHERE = ["files", "sqlite", "postgres", "redis list", "redis stream", "redis counter", "redis hash"]
SERVERS = EVERYWHERE[2:]

Make = Callable[[], contextlib.AbstractContextManager[Target]]


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Make:
    """Make an empty target; only one exists at a time."""
    kind, _, mode = request.param.partition(" ")
    server: Any = request.getfixturevalue(f"{kind}_server") if kind in ("redis", "postgres") else None

    def empty(directory: Path) -> Target:
        if kind == "redis":
            import redis

            return Redis(redis.Redis.from_url(server.url, decode_responses=True), server.url, mode)
        if kind == "postgres":
            return Sql(server.url)
        return Files(directory / "out") if kind == "files" else Sql(f"sqlite:///{directory / 'out.db'}")

    @contextlib.contextmanager
    def target() -> Iterator[Target]:
        with tempfile.TemporaryDirectory(prefix="millrace-sinks-") as directory:
            made = empty(Path(directory))
            yield made
            made.close()

    return target


@pytest.fixture
def target(make: Make) -> Iterator[Target]:
    with make() as made:
        yield made


@pytest.fixture
def engine(target: Target) -> Engine:
    return Engine(target)


every_target = pytest.mark.parametrize("make", EVERYWHERE, indirect=True)


@every_target
class TestEverySink:
    def test_nothing_is_visible_before_the_commit(self, engine: Engine, target: Target) -> None:
        engine.stage(0, 3)
        engine.stage(1, 2)
        assert target.seen() == {}
        engine.run_wave(abandon=True)
        assert target.seen() == {}
        engine.finish()

    def test_waves_without_rows(self, engine: Engine, target: Target) -> None:
        engine.run_wave()
        engine.stage(1, 1)
        engine.run_wave()
        engine.run_wave(twice=True)
        assert list(target.seen()) == [1]
        engine.finish()

    def test_rows_of_an_abandoned_wave_come_with_the_next(self, engine: Engine, target: Target) -> None:
        for _ in range(3):
            engine.stage(0, 2)
            engine.run_wave(abandon=True)
        engine.stage(0, 1)
        engine.run_wave(twice=True)
        assert target.seen() == {0: target.wanted([1, 2, 3, 4, 5, 6, 7])}
        engine.finish()

    def test_rows_staged_after_prepare_belong_to_the_next_wave(self, engine: Engine, target: Target) -> None:
        sink = engine.sinks[0]
        sink.process_rows(target.rows(0, [1, 2]))
        sink.prepare(1)
        sink.process_rows(target.rows(0, [3]))
        sink.commit(1)
        assert target.seen() == {0: target.wanted([1, 2])}
        sink.prepare(2)
        sink.commit(2)
        assert target.seen() == {0: target.wanted([1, 2, 3])}

    def test_one_instance_over_several_epochs(self, target: Target) -> None:
        """Each batch is an epoch, and sometimes a successor commits what this instance has prepared."""
        sink = target.sink(0, 1, 1)
        sink.recover(0, 0)
        for wave in range(1, 7):
            sink.epoch = 2 * wave
            for number in range(wave):  # as many rows as the wave's number, so counts differ between epochs
                sink.process_rows(target.rows(0, [10 * wave + number]))
            sink.prepare(wave)
            if wave % 2:
                sink.commit(wave)
            else:
                target.sink(0, 1, 2 * wave + 1).recover(wave, 2 * wave)
            assert target.seen() == {0: target.wanted([10 * past + number for past in range(1, wave + 1)
                                                       for number in range(past)])}

    def test_a_crash_after_the_decision(self, engine: Engine, target: Target) -> None:
        engine.stage(0, 2)
        engine.stage(1, 2)
        for sink in engine.sinks:
            sink.prepare(1)
        for sink in [target.sink(task, 2, engine.epoch + 1) for task in (0, 1)]:
            sink.recover(1, engine.epoch)
        assert target.seen() == {task: target.wanted(numbers) for task, numbers in {0: [1, 2], 1: [3, 4]}.items()}

    def test_recover_twice(self, engine: Engine, target: Target) -> None:
        engine.stage(0, 2)
        engine.sinks[0].prepare(1)
        engine.stage(0, 1)
        for epoch in (2, 2, 3):
            target.sink(0, 2, epoch).recover(1, 1)
            assert target.seen() == {0: target.wanted([1, 2])}

    def test_prepared_output_is_found_staged_and_published(self, target: Target) -> None:
        """By the sink itself and by its successors, also when the last of them has discarded what was staged."""
        sink = target.sink(0, 1, 1)
        sink.recover(0, 0)
        assert not sink.prepare(1), "nothing is staged"
        sink.process_rows(target.rows(0, [1, 2]))
        abandoned = sink.prepare(2)
        sink.process_rows(target.rows(0, [3]))
        tokens = sink.prepare(3)
        assert abandoned and tokens and sink.prepare(4) == tokens
        for epoch in (1, 2, 3):
            later = target.sink(0, 1, epoch)
            assert not later.missing(0, 4, 1, tokens)
            later.recover(4, 1)
            assert not later.missing(0, 4, 1, tokens)
        assert target.seen() == {0: target.wanted([1, 2, 3])}

    def test_prepared_output_that_is_gone_is_missed(self, target: Target) -> None:
        sink = target.sink(0, 2, 1)
        sink.recover(0, 0)
        sink.process_rows(target.rows(0, [1, 2]))
        tokens = sink.prepare(1)
        sink.commit(1)
        assert not sink.prepare(2), "nothing is staged since"
        sink.process_rows(target.rows(0, [3]))
        newer = sink.prepare(3)
        sink.staging.discard(0, 1)
        later = target.sink(0, 2, 2)
        assert not later.missing(0, 1, 1, tokens), "it is published"
        assert later.missing(0, 3, 1, newer) == newer
        assert later.missing(1, 1, 1, tokens) == tokens, "another task's"

    def test_tasks_that_no_longer_exist(self, target: Target) -> None:
        engine = Engine(target, parallelism=3)
        engine.stage(2, 2)
        for sink in engine.sinks:
            sink.prepare(1)
        engine.stage(2, 1)
        engine.stage(1, 1)
        target.sink(1, 2, 2).recover(1, 1)
        assert target.seen() == {}, "task 1 does not answer for task 2"
        successor = target.sink(0, 2, 2)
        successor.recover(1, 1)
        assert target.seen() == {2: target.wanted([1, 2])}
        assert list(successor.staging.staged()) == []

    def test_a_zombie_continues(self, engine: Engine, target: Target) -> None:
        engine.stage(0, 2)
        engine.run_wave()
        engine.stage(0, 2)
        engine.crash()
        for _ in range(2):
            for deed in ("stage", "prepare", "commit"):
                engine.haunt(0, deed)
            engine.stage(0, 1)
            engine.run_wave()
        engine.finish()

    def test_a_zombie_that_recovers_late_leaves_its_successor_alone(self, engine: Engine) -> None:
        engine.stage(0, 2)
        engine.run_wave()
        engine.crash(slow=True)
        engine.stage(0, 2)
        for number in range(len(engine.zombies)):
            engine.haunt(number, "recover")
        engine.run_wave()
        engine.finish()

    def test_discarded_rows_cannot_be_prepared(self, engine: Engine) -> None:
        engine.stage(0, 2)
        zombie = engine.sinks[0]
        engine.crash()
        with pytest.raises(MillraceError, match=r"rows staged in .* are missing .*a later epoch"):
            zombie.prepare(1)

    def test_another_instance_in_the_same_epoch_continues(self, engine: Engine, target: Target) -> None:
        engine.stage(0, 1)
        engine.run_wave(abandon=True)
        engine.stage(0, 2)
        engine.sinks[0].close()
        engine.sinks[0] = target.sink(0, 2, engine.epoch)
        engine.stage(0, 1)
        engine.run_wave()
        assert target.seen() == {0: target.wanted([1, 2, 3, 4])}
        engine.sinks[0] = target.sink(0, 2, engine.epoch)
        engine.finish()

    def test_an_earlier_run_with_the_same_numbers(self, engine: Engine, target: Target) -> None:
        """The checkpoints were deleted: waves and epochs start over, and visible rows stay."""
        engine.stage(0, 2)
        engine.run_wave()
        engine.stage(0, 2)
        engine.run_wave(abandon=True)
        anew = target.sink(0, 2, 1)
        anew.recover(0, 0)
        anew.process_rows(target.rows(0, [10]))
        anew.prepare(1)
        anew.commit(1)
        anew.prepare(2)
        anew.commit(2)
        assert sorted(target.seen()[0]) == target.wanted([1, 2, 10])  # files of two runs have no order

    def test_two_sinks_in_one_place(self, target: Target) -> None:
        first, other = (target.sink(0, 1, 1, component) for component in ("one", "other"))
        for sink, number in ((first, 1), (other, 2)):
            sink.process_rows(target.rows(0, [number]))
            sink.prepare(1)
        target.sink(0, 1, 2, "other").recover(0, 0)
        first.commit(1)
        assert target.seen() == {0: target.wanted([1])}

    def test_large_chunks(self, engine: Engine, target: Target) -> None:
        engine.stage(0, 9000)
        engine.stage(0, 9000)
        engine.run_wave()
        assert target.seen() == {0: target.wanted(list(range(1, 18001)))}

    def test_two_incarnations_commit_at_the_same_time(self, engine: Engine, target: Target) -> None:
        for _ in range(20):
            engine.stage(0, 30)
        engine.sinks[0].prepare(1)
        successors = [target.sink(0, 2, epoch) for epoch in (2, 3)]
        threads = [threading.Thread(target=engine.sinks[0].commit, args=(1,)),
                   *(threading.Thread(target=sink.recover, args=(1, 1)) for sink in successors)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert target.seen() == {0: target.wanted(list(range(1, 601)))}

    def test_an_error_is_not_a_crash(self, make: Make) -> None:
        """After an error, the engine resends a chunk, starts another wave after a failed prepare, and repeats a commit. It
        rolls back if the rows are lost: a file whose sync has failed is not trusted again."""
        fired = []
        for at in range(14):
            with make() as target:
                engine = Engine(target, parallelism=1)
                sink, rows = engine.sinks[0], target.rows(0, [2, 3])
                sink.process_rows(target.rows(0, [1]))
                wire = Wire(at, ConnectionError)
                with target.cut(sink, wire):
                    try:
                        sink.process_rows(rows)
                    except ConnectionError:
                        for row in rows:
                            sink.process_rows([row])
                    try:
                        sink.prepare(1)
                    except ConnectionError:
                        sink.prepare(2)
                    except RowsLost:
                        with pytest.raises(RowsLost):
                            sink.prepare(2)
                        engine.crash()
                        sink = engine.sinks[0]
                        sink.process_rows(target.rows(0, [1, 2, 3]))
                        sink.prepare(2)
                    try:
                        sink.commit(2)
                    except ConnectionError:
                        sink.commit(2)
                assert target.seen() == {0: target.wanted([1, 2, 3])}, f"cut at {at}"
                fired += [at] if wire.fired else []
        assert fired == list(range(len(fired))) and len(fired) >= 3, "each operation has a step, and each step was cut"

    def test_a_row_that_cannot_be_staged_does_not_affect_its_chunk(self, engine: Engine, target: Target) -> None:
        """The engine then sends the rows again one by one."""
        sink, rows = engine.sinks[0], target.rows(0, [1, 2, 3])
        bad = (rows[1][0], object())
        with pytest.raises(TypeError):
            sink.process_rows([rows[0], bad, rows[2]])
        for row in (rows[0], rows[2]):
            sink.process_rows([row])
        with pytest.raises(TypeError):
            sink.process_rows([bad])
        sink.prepare(1)
        sink.commit(1)
        assert target.seen() == {0: target.wanted([1, 3])}

    def test_a_failed_chunk_that_is_not_resent(self, make: Make) -> None:
        fired = 0
        for at in range(5):
            with make() as target:
                engine = Engine(target, parallelism=1)
                sink, wanted, wire = engine.sinks[0], [1, 2, 3], Wire(at, ConnectionError)
                sink.process_rows(target.rows(0, [1]))
                with target.cut(sink, wire):
                    try:
                        sink.process_rows(target.rows(0, [2, 3]))
                    except ConnectionError:
                        wanted = [1]
                sink.prepare(1)
                sink.commit(1)
                assert target.seen() == {0: target.wanted(wanted)}, f"cut at {at}"
                fired += wire.fired
        assert fired > 0


steps = st.none() | st.integers(0, 14)
deeds = st.one_of(
    st.tuples(st.just("stage"), st.integers(0, 2), st.integers(1, 3), st.none() | st.integers(0, 5)),
    st.tuples(st.just("run_wave"), steps, st.booleans(), steps, st.booleans()),
    st.tuples(st.just("crash"), st.none() | st.integers(1, 3), steps, st.booleans()),
    st.tuples(st.just("haunt"), st.integers(0, 20), st.sampled_from(["stage", "prepare", "commit"])))


def play(make: Make, story: list[tuple[Any, ...]]) -> Counter[str]:
    """Play a story; returns the operations that crashed at their cut."""
    with make() as target:
        engine = Engine(target)
        for deed, *arguments in story:
            getattr(engine, deed)(*arguments)
        engine.finish()
        return engine.fired


any_story = st.lists(deeds, min_size=3, max_size=25)
calm = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.mark.parametrize("make", ["files"], indirect=True)
@settings(calm, max_examples=examples(60))
@given(story=any_story)
def test_any_story_with_files(make: Make, story: list[tuple[Any, ...]]) -> None:
    play(make, story)


@pytest.mark.parametrize("make", ["sqlite"], indirect=True)
@settings(calm, max_examples=examples(12))
@given(story=any_story)
def test_any_story_with_sqlite(make: Make, story: list[tuple[Any, ...]]) -> None:
    play(make, story)


@pytest.mark.parametrize("make", SERVERS, indirect=True)
@settings(calm, max_examples=examples(3))
@given(story=any_story)
def test_any_story_with_a_server(make: Make, story: list[tuple[Any, ...]]) -> None:
    play(make, story)


@every_target
def test_a_crash_at_every_step(make: Make, request: pytest.FixtureRequest) -> None:
    """Crash one story at each of its steps in turn; databases start slowly, so only at a few steps there."""
    stride = {"sqlite": 3, "postgres": 7}.get(request.node.callspec.params["make"], 1)
    fired: Counter[str] = Counter()
    for at in range(0, 15, stride):
        fired += play(make, [
            ("stage", 0, 2), ("stage", 1, 1), ("run_wave",), ("stage", 0, 2), ("stage", 0, 2, at), ("stage", 1, 1),
            ("run_wave", at), ("stage", 0, 1), ("run_wave", None, True), ("stage", 1, 2), ("run_wave", None, False, at),
            ("haunt", 0, "stage"), ("stage", 0, 1), ("crash", None, at, True), ("haunt", 1, "commit"), ("haunt", 3, "recover")])
    assert fired.keys() == {"stage", "prepare", "commit", "recover"}, "every operation crashed at least once"
