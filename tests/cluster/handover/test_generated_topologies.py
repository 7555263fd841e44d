"""Random topologies of every grouping and kind of bolt, and random plans of moves, regroups and changes of parallelism while
waves run. Without a fault nothing is lost, repeated, replayed or reordered in any guarantee. With faults, exactly-once output
and state are exact, and at-least-once output is never short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.cluster import generated_parts as parts
from support.cluster.generated import generate
from support.cluster.generated_runs import AT_LEAST, AT_MOST, EXACTLY, FAULTS, Faults, GeneratedRun
from support.examples import examples

LIMIT = 500
PLANS = ("move", "move", "many", "regroup", "regroup", "both", "scale", "scale", "wave", "cancel", "restart")
SEEDS = st.integers(0, 1 << 30)
QUICK = settings(deadline=None, phases=[Phase.explicit, Phase.generate],
                 suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """State of more than a few keys is kept in pages."""
    monkeypatch.setattr("millrace.api.keyed.plain.PAGED_ABOVE", 3)
    yield
    parts.forget()


def run_without_faults(seed: int, guarantee: str, splits: bool = False) -> None:
    random = Random(seed)
    shape = generate(random, guarantee, LIMIT, splits)
    run = GeneratedRun(shape, random)
    run.cluster.run(0.05)
    for _ in range(random.randint(4, 12)):
        run.act(random, random.choice(PLANS))
        run.cluster.step(random.randrange(40))
    run.cluster.run_until(lambda: run.at_rest)
    assert not (flaws := run.flaws()), (flaws, str(shape), run.cluster.said)
    run.finish()
    run.check_received()
    run.check_order()
    run.check_state()
    if guarantee == EXACTLY:
        run.check_visible()


def run_with_faults(seed: int, guarantee: str, splits: bool = False) -> None:
    random = Random(seed)
    run = GeneratedRun(replace(generate(random, guarantee, LIMIT, splits), timeout=3.0), random)
    faults = Faults(run, random)
    run.cluster.run(0.05)
    for _ in range(random.randint(2, 12)):
        if random.random() < 0.5:
            run.act(random, random.choice(PLANS))
        else:
            faults.act(random.choice(FAULTS))
        run.cluster.step(random.choice([0, 1, 2, 5, 20, 70, 200]))
    faults.mend()
    run.finish()
    if guarantee == EXACTLY:
        run.check_visible()
        run.check_state()
    elif guarantee == AT_LEAST:
        run.check_never_short()


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST, AT_MOST])
@settings(QUICK, max_examples=examples(3))
@given(seed=SEEDS)
def test_without_faults(guarantee: str, seed: int, pages: None) -> None:
    run_without_faults(seed, guarantee)


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST, AT_MOST])
@settings(QUICK, max_examples=examples(3))
@given(seed=SEEDS)
def test_with_faults(guarantee: str, seed: int, pages: None) -> None:
    """At most once, it runs to its end, whatever was lost."""
    run_with_faults(seed, guarantee)


def run_with_deaths(seed: int, guarantee: str, splits: bool = False) -> None:
    """Workers die and come back, and nothing else fails: no switch may wait for something that never comes."""
    random = Random(seed)
    run = GeneratedRun(replace(generate(random, guarantee, LIMIT, splits), timeout=3.0), random)
    faults = Faults(run, random)
    run.cluster.run(0.05)
    for _ in range(random.randint(4, 14)):
        if random.random() < 0.5:
            run.act(random, random.choice(("move", "many", "regroup", "both", "scale")))
        else:
            faults.act(random.choice(("kill", "kill", "start", "start")))
        run.cluster.step(random.choice([0, 1, 2, 5, 20, 70, 200]))
    faults.mend()
    run.finish()
    assert not [text for text in run.cluster.said if "took longer than" in text]
    if guarantee == AT_LEAST:
        run.check_never_short()


@pytest.mark.parametrize(("guarantee", "seed"), [
    (AT_LEAST, 9),  # a wave that a loss has ended stays aligned in the tasks that survive
    (AT_LEAST, 106), (AT_MOST, 1002), (AT_MOST, 1222),
    (AT_LEAST, 127),  # a receiver is placed anew between the end of a key group's old owner and the start of the new one
    (AT_MOST, 1177)])
def test_no_death_stalls_a_switch(guarantee: str, seed: int, pages: None) -> None:
    run_with_deaths(seed, guarantee)


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST, AT_MOST])
@pytest.mark.parametrize("seed", range(3000, 3003))
@pytest.mark.parametrize("run", [run_without_faults, run_with_faults, run_with_deaths])
def test_spouts_with_splits(run: Callable[[int, str, bool], None], seed: int, guarantee: str, pages: None) -> None:
    """They are scaled, too."""
    run(seed, guarantee, True)


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST, AT_MOST])
@pytest.mark.parametrize("seed", range(4000, 4060))
@pytest.mark.parametrize("run", [run_without_faults, run_with_faults, run_with_deaths])
def test_more_spouts_with_splits(run: Callable[[int, str, bool], None], seed: int, guarantee: str, pages: None) -> None:
    run(seed, guarantee, True)


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST, AT_MOST])
@pytest.mark.parametrize("seed", range(2000, 2100))
def test_no_more_deaths_stall_a_switch(seed: int, guarantee: str, pages: None) -> None:
    run_with_deaths(seed, guarantee)


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST, AT_MOST])
@pytest.mark.parametrize("seed", range(60))
def test_more_without_faults(seed: int, guarantee: str, pages: None) -> None:
    run_without_faults(seed, guarantee)


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST, AT_MOST])
@pytest.mark.parametrize("seed", range(60))
def test_more_with_faults(seed: int, guarantee: str, pages: None) -> None:
    run_with_faults(seed, guarantee)
