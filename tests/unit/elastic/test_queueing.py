"""Erlang's formulas and waiting times: against published tables, and against a simulation of the queue."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import accumulate

import pytest
import simpy
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import gammaincc, gammaln

from millrace.elastic.queueing import erlang_b, erlang_c, least_servers, waiting_time

CUSTOMERS = 40_000
WARM_UP = 2_000
SMALLEST = 1e-280  # smaller floats lose digits
TOLERANCE = 0.15  # of a simulated mean: about three standard errors at these loads


@pytest.mark.parametrize(("servers", "erlangs", "blocking"), [
    # Rappaport, Wireless Communications, table 3.4: capacity of an Erlang B system, to three digits.
    (2, 0.153, 0.01), (4, 0.869, 0.01), (5, 1.36, 0.01), (10, 4.46, 0.01), (20, 12.0, 0.01), (24, 15.3, 0.01),
    (40, 29.0, 0.01), (70, 56.1, 0.01), (100, 84.1, 0.01), (10, 3.96, 0.005), (100, 80.9, 0.005), (20, 9.41, 0.001)])
def test_the_published_table_of_erlang_b(servers: int, erlangs: float, blocking: float) -> None:
    digits = 10 ** (math.floor(math.log10(erlangs)) - 2)  # one unit of the last digit, since the table is rounded
    assert erlang_b(servers, erlangs - digits) < blocking < erlang_b(servers, erlangs + digits)


def test_the_eye_clinic_of_gross_and_harris() -> None:
    """Fundamentals of Queueing Theory, M/M/c: 6 patients an hour, 3 doctors, 20 minutes each: L_q = 8/9, W = 28.9 minutes."""
    queued = waiting_time(6, 3, 3)
    assert 6 * queued == pytest.approx(8 / 9)
    assert 60 * (queued + 1 / 3) == pytest.approx(28.9, abs=0.05)


def test_the_call_centre_of_100_calls_in_half_an_hour() -> None:
    """The usual example of Erlang C: 10 erlangs, 14 agents: 17.4 % wait, and calls are answered after 7.8 s on average."""
    assert erlang_c(14, 10.0) == pytest.approx(0.174, abs=0.0005)
    assert waiting_time(100 / 1800, 1 / 180, 14) == pytest.approx(7.8, abs=0.05)


def test_the_call_centre_of_360_calls_in_half_an_hour() -> None:
    """Tanner, The Erlang-C formula (mitan.co.uk): 48 erlangs, 55 agents: 23.9 % wait."""
    assert erlang_c(55, 360 * 4 / 30) == pytest.approx(0.239, abs=0.0005)


def test_the_maintenance_of_bronson() -> None:
    """Schaum's Outline of Operations Research, problem 24.6: 300 arrivals a year, 2 days each, 3 servers: L_q = 0.352,
    L = 1.996, W_q = 0.43 days."""
    days = 365 * waiting_time(300, 365 / 2, 3)
    assert days == pytest.approx(0.43, abs=0.005)
    assert 300 / 365 * days == pytest.approx(0.352, abs=0.0005)
    assert 300 / 365 * (days + 2) == pytest.approx(1.996, abs=0.0005)


def test_the_published_chart_of_erlang_c() -> None:
    """Rappaport, Wireless Communications, figure 3.7 as read in its examples: 15 channels carry 9.0 erlangs if 5 % wait."""
    assert erlang_c(15, 8.9) < 0.05 < erlang_c(15, 9.1)


@pytest.mark.parametrize(("servers", "offered", "waits"), [(1, 0.5, 1 / 2), (2, 1.0, 1 / 3), (3, 2.0, 4 / 9)])
def test_erlang_c_by_hand(servers: int, offered: float, waits: float) -> None:
    assert erlang_c(servers, offered) == pytest.approx(waits)


@given(st.integers(1, 40), st.floats(0.01, 0.99))
def test_the_recursion_equals_the_formula_with_factorials(servers: int, busy: float) -> None:
    offered = servers * busy
    idle = 1 / (sum(offered ** count / math.factorial(count) for count in range(servers))
                + offered ** servers / (math.factorial(servers) * (1 - busy)))
    by_formula = idle * offered ** servers / (math.factorial(servers) * (1 - busy) ** 2 * servers)
    assert waiting_time(offered, 1.0, servers) == pytest.approx(by_formula, rel=1e-9)


def by_incomplete_gamma(servers: int, offered: float) -> float:
    """Erlang C without the recursion: Erlang B is the Poisson probability of c over that of at most c, which is a regularized
    incomplete gamma function."""
    blocked = math.exp(servers * math.log(offered) - offered - gammaln(servers + 1)) / gammaincc(servers + 1, offered)
    return float(blocked / (1 - offered / servers * (1 - blocked)))


def in_fractions(servers: int, offered: Fraction) -> Fraction:
    """Erlang C by the formula with factorials, without any rounding."""
    terms = list(accumulate(range(1, servers + 1), lambda term, count: term * offered / count, initial=Fraction(1)))
    blocked = terms[-1] / sum(terms)
    return blocked / (1 - offered / servers * (1 - blocked))


@given(st.integers(1, 5000), st.floats(0.001, 0.999))
@example(5000, 0.999)
@example(1, 0.999)
@example(5000, 0.5)
def test_the_recursion_equals_the_incomplete_gamma_function(servers: int, busy: float) -> None:
    assert erlang_c(servers, servers * busy) == pytest.approx(by_incomplete_gamma(servers, servers * busy), rel=1e-9,
                                                              abs=SMALLEST)


@pytest.mark.parametrize("thousandths", [10, 500, 900, 999])
@pytest.mark.parametrize("servers", [1, 2, 7, 40, 300])
def test_the_recursion_equals_the_formula_in_fractions(servers: int, thousandths: int) -> None:
    offered = Fraction(servers * thousandths, 1000)
    assert erlang_c(servers, float(offered)) == pytest.approx(float(in_fractions(servers, offered)), rel=1e-11, abs=SMALLEST)


@given(st.integers(1000, 20_000), st.floats(0.5, 1.5))
@example(20_000, 0.999)
@example(10_000, 1.0)
def test_thousands_of_servers_are_no_problem(servers: int, busy: float) -> None:
    offered = servers * busy
    expected = by_incomplete_gamma(servers, offered) / (servers - offered) if offered < servers else math.inf
    assert waiting_time(offered, 1.0, servers) == pytest.approx(expected, rel=1e-9, abs=SMALLEST)


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_the_fewest_servers_are_stable_and_one_fewer_are_not(arrivals: float, service: float) -> None:
    fewest = least_servers(arrivals, service)
    assert fewest - 1 <= arrivals / service < fewest


def test_without_arrivals_nobody_waits() -> None:
    assert waiting_time(0.0, 5.0, 1) == 0.0
    assert waiting_time(5.0, 5.0, 1) == math.inf


def simulated_wait(servers: int, between: Callable[[], float], service: Callable[[], float]) -> float:
    """Mean seconds in the queue of a station, simulated."""
    environment, waits = simpy.Environment(), []
    station = simpy.Resource(environment, servers)

    def customer() -> Iterator[object]:
        came = environment.now
        with station.request() as turn:
            yield turn
            waits.append(environment.now - came)
            yield environment.timeout(service())

    def arrivals() -> Iterator[object]:
        for _ in range(CUSTOMERS):
            yield environment.timeout(between())
            environment.process(customer())

    environment.process(arrivals())
    environment.run()
    return sum(waits[WARM_UP:]) / len(waits[WARM_UP:])


@pytest.mark.parametrize(("servers", "busy"), [(1, 0.5), (3, 2 / 3), (10, 0.7)])
def test_a_simulated_queue_waits_as_long(servers: int, busy: float) -> None:
    chance = random.Random(7)
    simulated = simulated_wait(servers, lambda: chance.expovariate(servers * busy), lambda: chance.expovariate(1.0))
    assert waiting_time(servers * busy, 1.0, servers) == pytest.approx(simulated, rel=TOLERANCE)


@pytest.mark.parametrize(("arrival_cv2", "service_cv2"), [(1.0, 0.0), (0.5, 1.0), (1.0, 0.25)])
def test_allen_and_cunneen_correct_for_other_variation(arrival_cv2: float, service_cv2: float) -> None:
    """With gamma distributions of these squared coefficients of variation, 0 being constant. The approximation itself
    is good to about a tenth."""
    chance, servers, busy = random.Random(11), 4, 0.8

    def gamma(mean: float, cv2: float) -> float:
        return chance.gammavariate(1 / cv2, mean * cv2) if cv2 else mean

    simulated = simulated_wait(servers, lambda: gamma(1 / (servers * busy), arrival_cv2), lambda: gamma(1.0, service_cv2))
    corrected = waiting_time(servers * busy, 1.0, servers, arrival_cv2, service_cv2)
    assert corrected == pytest.approx(simulated, rel=2 * TOLERANCE)
    assert corrected < waiting_time(servers * busy, 1.0, servers)


def test_servers_that_cannot_keep_up_wait_for_ever_without_any_variation_too() -> None:
    assert waiting_time(20.0, 10.0, 2, 0.0, 0.0) == math.inf and waiting_time(19.0, 10.0, 2, 0.0, 0.0) == 0.0


@pytest.mark.parametrize(("arrivals", "service", "fewest"), [(0.3, 0.1, 4), (0.7, 0.1, 8), (600.0, 100.0, 7), (0.0, 5.0, 1)])
def test_servers_that_are_busy_all_the_time_do_not_keep_up(arrivals: float, service: float, fewest: int) -> None:
    """Also where the quotient is a little below a whole number, since floats are rounded."""
    assert least_servers(arrivals, service) == fewest
