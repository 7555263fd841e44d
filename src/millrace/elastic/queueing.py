"""Waiting times of a station with several servers: Erlang's formulas, M/M/c, and G/G/c by Allen and Cunneen.

The formulas have factorials and powers that no float can hold; the recursion of Erlang B has neither, so that thousands of
servers are no problem. Times are in seconds, rates per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

RATE_ROUNDING = 1e-9  # share by which a quotient of rates may be wrong


def losses(offered: float) -> Iterator[float]:
    """Erlang B for 0, 1, 2 … servers: B(0) = 1, B(c) = a·B(c-1) / (c + a·B(c-1)). `offered`: a = λ/μ, in erlangs."""
    blocked, servers = 1.0, 0
    while True:
        yield blocked
        servers += 1
        blocked = offered * blocked / (servers + offered * blocked)


def erlang_b(servers: int, offered: float) -> float:
    """Probability that all servers are busy, if nobody waits."""
    return next(loss for count, loss in enumerate(losses(offered)) if count == servers)


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival has to wait; 1 if the servers cannot keep up."""
    return waiting_probability(erlang_b(servers, offered), servers, offered)


def waiting_probability(loss: float, servers: int, offered: float) -> float:
    """Erlang C from Erlang B with the same number of servers."""
    return loss / (1 - offered / servers * (1 - loss)) if offered < servers else 1.0


def least_servers(arrival_rate: float, service_rate: float) -> int:
    """The fewest servers with which the queue does not grow forever: floor(λ/μ) + 1. A quotient that is below a whole number
    only because of its rounding counts as that number."""
    return math.floor(arrival_rate / service_rate * (1 + RATE_ROUNDING)) + 1


def waiting_time(arrival_rate: float, service_rate: float, servers: int, arrival_cv2: float = 1.0,
                 service_cv2: float = 1.0) -> float:
    """Mean seconds in the queue; infinite if the servers cannot keep up. `arrival_cv2`, `service_cv2`: squared coefficients of
    variation of the times between arrivals and of the service times, 1 if they are exponential as in M/M/c."""
    offered = arrival_rate / service_rate
    wait = queued_seconds(erlang_b(servers, offered), arrival_rate, service_rate, servers)
    return wait * variability(arrival_cv2, service_cv2) if math.isfinite(wait) else wait


def queued_seconds(loss: float, arrival_rate: float, service_rate: float, servers: int) -> float:
    """The waiting time of M/M/c from Erlang B with the same number of servers."""
    spare = servers * service_rate - arrival_rate
    if arrival_rate <= 0:
        return 0.0
    return waiting_probability(loss, servers, arrival_rate / service_rate) / spare if spare > 0 else math.inf


def variability(arrival_cv2: float, service_cv2: float) -> float:
    """Factor of Allen and Cunneen: waiting time of G/G/c over that of M/M/c."""
    return (arrival_cv2 + service_cv2) / 2
