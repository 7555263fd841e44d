"""The tables of `bench elastic`, and its aims."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from millrace.bench.aims import Aim, Result

MOST_DECISIONS, MOST_INSTANCES_OVER, MOST_GAP_MS, MOST_P99_RATIO, MOST_GROUPS_OVER = 2, 0.1, 100, 0.5, 1


def _gap_over_usual(result: Mapping[str, Any]) -> float | None:
    longest, usual = result["longest_gap_ms"], result["usual_gap_ms"]
    return None if longest is None or usual is None else max(0, longest - usual)


def _decisions(result: Mapping[str, Any]) -> float | None:
    """The decisions until the latency was under T_max; infinite if it never was."""
    return math.inf if result["decisions"] is None and result["instances"] is not None else result["decisions"]


def _groups_over(result: Mapping[str, Any]) -> float | None:
    """The key groups that moved beyond the fewest, at the worst change."""
    return max((row["key_groups_moved"] - row["key_groups_minimum"] for row in result["rescales"]), default=None)


ELASTIC_AIMS = (
    Aim("elastic", "elastic loop, three times the rate: decisions until the latency is under T_max",
        _decisions, MOST_DECISIONS, at_most=True),
    Aim("elastic", "elastic loop, three times the rate: changes that go back on an earlier one",
        lambda result: result["oscillations"], 0, at_most=True),
    Aim("elastic", "elastic loop, all runs: tuples lost or repeated", lambda result: result["lost"] + result["repeated"], 0,
        at_most=True),
    Aim("elastic", "elastic loop, three times the rate: ms of the longest gap at the sink over the usual one",
        _gap_over_usual, MOST_GAP_MS, at_most=True),
    Aim("elastic", "elastic loop, three times the rate: share of instances over the fewest that would do",
        lambda result: result["instances_over_minimum"], MOST_INSTANCES_OVER, at_most=True),
    Aim("elastic", "elastic loop, sine: p99 to that of as many fixed instances", lambda result: result["p99_ratio_to_fixed"],
        MOST_P99_RATIO, at_most=True),
    Aim("elastic", "change of parallelism: key groups moved over the fewest possible", _groups_over, MOST_GROUPS_OVER,
        at_most=True),
)


def elastic_summary(result: Result) -> list[str]:
    """Lines for a terminal."""
    lines = [f"after {step['at_s']:g} s: {step['decision']}, {step['instances']} instances; predicted "
             f"{_text(step['predicted_ms'])} ms, measured {_text(step['measured_ms'])} ms, {_text(step['settled_ms'])} ms "
             f"without the backlog (error {_percent(step['error'])})" for step in result["steps"]]
    if result["instances"] is not None:
        lines.append(f"under T_max after {_text(result['decisions'])} decisions and {_text(result['recovered_s'])} s, "
                     f"{_text(result['oscillations'])} oscillations; {result['instances']} instances, "
                     f"{_text(result['fewest_instances'])} would do; longest gap {_text(result['longest_gap_ms'])} ms, usually "
                     f"{_text(result['usual_gap_ms'])} ms")
    if result["sine"]:
        elastic, fixed = result["sine"]["elastic"], result["sine"]["fixed"]
        lines.append(f"sine: p99 {_text(elastic['p99_ms'])} ms with {elastic['instances']:g} instances on average, "
                     f"{_text(fixed['p99_ms'])} ms with {fixed['instances']:g} fixed ones; {elastic['tuples_per_s']:g} and "
                     f"{fixed['tuples_per_s']:g} tuples/s")
    lines += [f"{row['change']}: {row['key_groups_moved']} key groups moved, {row['key_groups_minimum']} at least; longest gap "
              f"{_text(row['longest_gap_ms'])} ms, usually {_text(row['usual_gap_ms'])} ms; {row['seconds']:g} s"
              for row in result["rescales"]]
    lines += [f"gap of {row['engine']}, {row['how']}: {row['gap_ms']:,} ms ({row['source']})" for row in result["gaps"]]
    return [*lines, f"{result['lost']} tuples lost, {result['repeated']} repeated"]


def elastic_tables(result: Result) -> list[str]:
    """The Markdown of docs/BENCHMARKS.md."""
    lines = ["", f"Model `{result['model']}`, T_max {result['t_max_ms']:g} ms; {result['lost']} tuples lost, "
             f"{result['repeated']} repeated in all runs. The whole command took {result['seconds'] / 60:.1f} minutes."]
    if result["steps"]:
        lines += _table(("s", "decision", "instances", "predicted, ms", "measured, ms", "without backlog, ms", "error"),
                        [(step["at_s"], step["decision"], step["instances"], _text(step["predicted_ms"]),
                          _text(step["measured_ms"]), _text(step.get("settled_ms")), _percent(step.get("error")))
                         for step in result["steps"]])
    if result["instances"] is not None:
        lines += ["", f"Three times the rate: under T_max after {_text(result['decisions'])} decisions and "
                  f"{_text(result['recovered_s'])} s; after that {_text(result['share_over_t_max'])} of the windows of 2 s are "
                  f"over it. {_text(result['oscillations'])} oscillations in {result['watched_s']:g} s. {result['instances']} "
                  f"instances in the end, {_text(result['fewest_instances'])} would do. Longest gap "
                  f"{_text(result['longest_gap_ms'])} ms, usually {_text(result['usual_gap_ms'])} ms."]
    if result["sine"]:
        lines += _table(("sine", "instances", "p99, ms", "mean, ms", "tuples/s", "changes"),
                        [(name, *(_text(row[key]) for key in ("instances", "p99_ms", "mean_ms", "tuples_per_s", "changes")))
                         for name, row in result["sine"].items()])
    if result["rescales"]:
        lines += _table(("change by hand", "key groups moved", "at least", "longest gap, ms", "usual", "s"),
                        [(row["change"], row["key_groups_moved"], row["key_groups_minimum"], _text(row["longest_gap_ms"]),
                          _text(row["usual_gap_ms"]), row["seconds"]) for row in result["rescales"]])
    lines += _table(("another parallelism", "how", "ms without output", "measured"),
                    [(row["engine"], row["how"], f"{row['gap_ms']:,}", row["source"]) for row in result["gaps"]])
    if result["failed"]:
        lines += ["", f"**Not measured, because they failed:** {', '.join(result['failed'])}."]
    return lines


def _table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    return ["", *(f"| {' | '.join(map(str, row))} |" for row in (header, ["---"] * len(header), *rows))]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:+.0%}"


def _text(value: Any) -> str:
    return "–" if value is None else f"{value:,g}" if isinstance(value, float) else f"{value:,}"
