"""`millrace bench page`: writes the figures of the newest results into docs/BENCHMARKS.md and README.md.

The page has a pair of marks for each result, `<!-- figures: NAME -->` and `<!-- end: NAME -->`; the text between them is
replaced by tables made from the JSON. The README has one pair, for its comparison of engines. A result without marks is
refused; marks without a result keep their text. The JSON is copied to docs/benchmarks/, so that every figure can be traced to
its run, and both pages can be made again from these copies alone.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from millrace.bench.aims import SCHEDULER_AIMS, Aim, Figure, Result
from millrace.bench.elastic.report import ELASTIC_AIMS, elastic_tables
from millrace.bench.handover.figures import COLUMNS, cells
from millrace.bench.migration.ratios import HANDOVER_WORST, ratio_text
from millrace.bench.migration.tables import markdown_table, paper_tables, standing_rows
from millrace.bench.results import RESULTS
from millrace.bench.wordcount_rows import GROUPS
from millrace.checkout import project_root
from millrace.config import AT_LEAST_ONCE, EXACTLY_ONCE
from millrace.control.moves import BY_HANDOVER
from millrace.errors import MillraceError

PAGE = Path("docs") / "BENCHMARKS.md"
README = Path("README.md")
COPIES = Path("docs") / "benchmarks"
AIMS = "aims"  # name of the marks around the table of aims
COMPARISON = "comparison"  # name of the marks in the README
# The rows that the README shows, in its order within each guarantee.
SHOWN = ("process", "process_arrow", "bytewax_per_item", "bytewax", "pathway", "process_acked", "process_checkpointed",
         "process_arrow_combined_checkpointed", "microbatch", "microbatch_arrow", "bytewax_per_item_checkpointed",
         "bytewax_checkpointed", "pathway_checkpointed", "spark_sql", "spark_python")
# The results of `bench faults`.
FAULTS = {f"faults-{EXACTLY_ONCE}": "exactly once", f"faults-{AT_LEAST_ONCE}": "at least once",
          f"faults-microbatch-{EXACTLY_ONCE}": "microbatch engine, exactly once",
          f"faults-microbatch-{AT_LEAST_ONCE}": "microbatch engine, at least once"}
_STAMP = re.compile(r"-\d{8}-\d{6}$")


def _ratio(name: str) -> Callable[[Result], float | None]:
    return lambda result: result["ratios"].get(name)


def _latency_of(row: str, percentile: str) -> Callable[[Result], float | None]:
    return lambda result: result["latency_ms"].get(row, {}).get(percentile)


def _pair(name: str) -> Callable[[Result], Figure | None]:
    """Two figures of `bench migration`, whose ratio cannot be told if the second is 0."""
    def figures(result: Result) -> Figure | None:
        pair = result["compared"].get(name)
        return None if pair is None else (pair[0], pair[1])
    return figures


def _figure_text(figure: Figure | None) -> str:
    if figure is None:
        return ""
    if not isinstance(figure, tuple):
        return f"{figure:,g}"
    ours, theirs = figure
    return ratio_text(round(ours / theirs, 3) if theirs else None, figure)


def _restore_ratio(other: str) -> Callable[[Result], float | None]:
    """Seconds from fragments over seconds from another source, for the largest state."""
    def ratio(result: Result) -> float | None:
        times = list(result["restore_s"].values())[-1]
        return round(times["fragments"] / times[other], 2) if times[other] else None
    return ratio


def _forbidden(*names: str) -> Callable[[Result], float | None]:
    """The number of results that a guarantee forbids; without end if the run got stuck."""
    def forbidden(result: Result) -> float | None:
        if result["stuck"]:
            return float("inf")
        return sum(part[name] for part in (result, result["drivers"]["compared"]) for name in names)
    return forbidden


def _worst(figure: Callable[[Result], float | None], lowest: bool = False) -> Callable[[Result], float | None]:
    """The highest figure of the runs by hand-over, or the lowest; without end if one of them failed."""
    def worst(result: Result) -> float | None:
        if any(name.startswith(BY_HANDOVER) for name in result["failed"]):
            return float("-inf") if lowest else float("inf")
        figures = [number for run in result["runs"] if run["strategy"] == BY_HANDOVER and (number := figure(run)) is not None]
        return (min(figures) if lowest else max(figures)) if figures else None
    return worst


def _unless_failed(figure: Callable[[Result], float | None]) -> Callable[[Result], float | None]:
    """A figure of hand-over, of which less is better; without end if one of its runs failed."""
    return lambda result: float("inf") if any(name.startswith(BY_HANDOVER) for name in result["failed"]) else figure(result)


def _rise(during: str, before: str) -> Callable[[Result], float | None]:
    return lambda run: None if run[during] is None or run[before] is None else round(run[during] - run[before], 1)


def _staying_gap(run: Result) -> float | None:
    return _rise("longest_gap_ms", "usual_gap_ms")(run["staying_groups"]) if run["staying_groups"] else None


ALL_AIMS = (
    Aim("wordcount", "`process` to Bytewax, a call for every word, at most once", _ratio("process_to_bytewax_per_item"), 3.0),
    Aim("wordcount", "`process` to Pathway, at most once", _ratio("process_to_pathway"), 1.2),
    Aim("wordcount", "`process_rows` to Bytewax, on batches, at most once", _ratio("rows_to_bytewax"), 2.5),
    Aim("wordcount", "`process`, at least once to at most once", _ratio("acked_to_process"), 0.9),
    Aim("wordcount", "`process`, exactly once to at most once", _ratio("exactly_once_to_process"), 0.9),
    Aim("wordcount", "`process` to Bytewax, a call for every word, checkpointed",
        _ratio("process_checkpointed_to_bytewax_per_item"), 3.0),
    Aim("wordcount", "`process` to Pathway, checkpointed", _ratio("process_checkpointed_to_pathway"), 1.2),
    Aim("wordcount", "`process_arrow` to SQL: both checkpointed, both count before the shuffle", _ratio("arrow_to_spark_sql"),
        1.5),
    Aim("wordcount", "microbatch on Spark's files to SQL", _ratio("microbatch_arrow_files_to_spark_sql"), 1.5),
    Aim("wordcount", "latency of `process` at 1,000 lines/s, ms: p50", _latency_of("process", "p50"), 0.5, at_most=True),
    Aim("wordcount", "latency of `process` at 1,000 lines/s, ms: p99", _latency_of("process", "p99"), 3.0, at_most=True),
    Aim("wordcount", "microbatch `process_arrow` to Spark's Python state", _ratio("microbatch_arrow_to_spark_python"), 2.0),
    Aim("engines", "skewed keys: time of a batch after redistribution to before", lambda result: result.get("skew_batch_ratio"),
        0.75, at_most=True),
    Aim("memory", "memory behind a slow bolt: last third to second third",
        lambda result: round(result["last_third_max_mb"] / result["second_third_max_mb"], 3), 1.05, at_most=True),
    *SCHEDULER_AIMS,
    Aim("replanning", "words lost while schedulers take over from each other", lambda result: result["lost"], 0, at_most=True),
    Aim("state", "erasure code: MB/s to cut", lambda result: result["encode_mb_s"], 500),
    Aim("state", "erasure code: MB/s to rebuild", lambda result: result["decode_mb_s"], 500),
    Aim("state", "largest state: fragments to Redis, seconds", _restore_ratio("redis"), 0.7, at_most=True),
    Aim("state", "largest state: fragments to a local file, seconds", _restore_ratio("directory"), 1.0, at_most=True),
    Aim("state", "share of the throughput that a wave every second takes", lambda result: result["wave_cost"], 0.05,
        at_most=True),
    Aim("handover", "hand-over: words lost or repeated", _worst(lambda run: run["lost"] + run["repeated"]), 0, at_most=True),
    Aim("handover", "hand-over: ms of the longest gap at the sinks over the usual one",
        _worst(_rise("longest_gap_ms", "usual_gap_ms")), 100, at_most=True),
    Aim("handover", "hand-over: throughput during the move to before", _worst(lambda run: run["throughput_ratio"], lowest=True),
        0.95),
    Aim("handover", "hand-over: ms of the p99 latency during the move over before",
        _worst(_rise("p99_during_ms", "p99_before_ms")), 100, at_most=True),
    Aim("handover", "hand-over: pause of a task with the largest state to that of a roll-back",
        lambda result: result["pause_to_rollback"], 0.10, at_most=True),
    Aim("handover", "hand-over of key groups: ms of the longest gap of the task's other groups over the usual one",
        _worst(_staying_gap), 10, at_most=True),
    Aim("migration", "`dcr`, `ccr`: rows lost or replayed", _ratio("dcr_ccr_lost_or_replayed"), 0, at_most=True),
    Aim("migration", "`ccr` captures to `dcr` drains, Linear with 50 tasks", _pair("ccr_capture_to_dcr_drain_linear50"), 1.0,
        at_most=True, strict=True),
    Aim("migration", "`ccr` captures: Linear with 50 tasks to 5 tasks", _pair("ccr_capture_linear50_to_linear"), 1.5,
        at_most=True),
    Aim("migration", "restore, the worst of all dataflows: `dcr` to `dsm`", _pair("dcr_restore_to_dsm"), 1.0, at_most=True,
        strict=True),
    Aim("migration", "restore, the worst of all dataflows: `ccr` to `dsm`", _pair("ccr_restore_to_dsm"), 1.0, at_most=True,
        strict=True),
    Aim("migration", "restore on Grid: `ccr` to `dsm`, the worse of scaling in and out, delays shortened by the time scale",
        _pair("ccr_restore_to_dsm_grid"), 0.4, at_most=True),
    Aim("migration", "restore on Grid, scaling out: `ccr` to `dsm`, the paper's delays",
        _pair("ccr_restore_to_dsm_grid_scale_1"), 0.4, at_most=True),
    Aim("migration", "60 % degradation, one task: `nstorm` to `storm*`, cycles shortened by the time scale",
        _pair("nstorm_degradation_to_storm*"), 0.1, at_most=True),
    Aim("migration", "60 % degradation, one task: `nstorm` to `storm*`, the paper's cycles",
        _pair("nstorm_degradation_to_storm*_scale_1"), 0.1, at_most=True),
    Aim("migration", "60 % degradation, 16 tasks: `nstorm` to `storm*`", _pair("nstorm_degradation_to_storm*_16"), 0.1,
        at_most=True),
    Aim("migration", "60 % degradation, 16 tasks: `nstorm+` to `nstorm`", _pair("nstorm+_degradation_to_nstorm"), 1.0,
        at_most=True, strict=True),
    Aim("migration", "60 % degradation, 4 tasks of Top_N: `nstorm+` to `nstorm`", _pair("nstorm+_degradation_to_nstorm_topn"),
        1.0, at_most=True, strict=True),
    Aim("migration", "60 % degradation, 16 tasks: `nstorm+` to `nstorm` with the same cycles",
        _pair("nstorm+_degradation_to_nstorm_long_cycles"), 1.0, at_most=True, strict=True),
    Aim("migration", "hand-over to the best of the other strategies, in its worst column of all workloads",
        _unless_failed(_ratio(HANDOVER_WORST)), 1.0, at_most=True),
    *ELASTIC_AIMS,
    *(Aim(name, f"words lost, repeated, torn or wrong, and wrong counts: {text}",
          _forbidden("lost", "repeated", "wrong", "beyond", "torn_bytes", "counts_wrong"), 0, at_most=True)
      for name, text in FAULTS.items() if name.endswith(EXACTLY_ONCE)),
    *(Aim(name, f"words lost or wrong, and counts too low: {text}", _forbidden("lost", "wrong", "counts_less"), 0, at_most=True)
      for name, text in FAULTS.items() if name.endswith(AT_LEAST_ONCE)),
)


def run_page(paths: Sequence[str], root: Path | None = None) -> list[str]:
    """Write the figures into the page and the README. Returns the names of the new results. `paths`: results to use; empty: the
    newest of each kind."""
    root = root or project_root()
    results = read_results([Path(path) for path in paths] or newest(root / RESULTS))
    texts = pages_of(root, copies_in(root) | results)
    (root / COPIES).mkdir(exist_ok=True)
    for name, result in results.items():
        (root / COPIES / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    for path, text in texts.items():
        (root / path).write_text(text)
    return list(results)


def copies_in(root: Path) -> dict[str, Result]:
    return read_results(sorted((root / COPIES).glob("*.json")))


def pages_of(root: Path, results: dict[str, Result]) -> dict[Path, str]:
    """The page and the README with the figures of these results, by path."""
    page, readme = (root / PAGE).read_text(), (root / README).read_text()
    for name, result in results.items():
        page = replaced(page, name, [described(result), *TABLES[name](result)])
    page = replaced(page, AIMS, aims_table(results))
    if "wordcount" in results:
        readme = replaced(readme, COMPARISON, comparison_table(results["wordcount"]), README)
    return {PAGE: page, README: readme}


def newest(directory: Path) -> list[Path]:
    """The newest result of each kind, by the time in the name of its file: copying changes the file's own time."""
    paths = sorted(directory.glob("*.json"), key=lambda path: path.stem.removeprefix(kind_of(path)))
    if not paths:
        raise MillraceError(f"there are no results in {directory}: run the benchmarks first, such as millrace bench wordcount")
    return list({kind_of(path): path for path in paths if kind_of(path) in TABLES}.values())


def read_results(paths: Iterable[Path]) -> dict[str, Result]:
    results: dict[str, Result] = {}
    for path in paths:
        kind = kind_of(path)
        if kind not in TABLES:
            raise MillraceError(f"{path}: there is no table for {kind!r}; there are tables for {', '.join(TABLES)}")
        results[kind] = json.loads(path.read_text())
    return results


def kind_of(path: Path) -> str:
    """The kind of a result by the name of its file, without the time."""
    return _STAMP.sub("", path.stem)


def replaced(text: str, name: str, lines: Iterable[str], page: Path = PAGE) -> str:
    """Replace the text between the marks of `name`."""
    begin, end = f"<!-- figures: {name} -->", f"<!-- end: {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise MillraceError(f"{page} must have {begin!r} and {end!r} once each")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{rest.partition(end)[2]}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table with an empty line before it."""
    return ["", *(f"| {' | '.join(map(str, row))} |" for row in (header, ["---"] * len(header), *rows))]


def described(result: Result) -> str:
    """One line: when and on which machine."""
    machine = result.get("machine")
    if machine is None:
        return "Raw result beside this page."
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(result["at"]))
    return (f"Measured {at}; {machine['cores']} cores, Python {machine['python']}, load average at the end "
            f"{machine['load_average']:.1f}.")


def aims_table(results: dict[str, Result]) -> list[str]:
    rows = []
    for aim in ALL_AIMS:
        figure = aim.value(results[aim.result]) if aim.result in results else None
        verdict = "not measured" if figure is None else "met" if aim.is_met(figure) else "**missed**"
        rows.append((aim.text, _figure_text(figure), aim.bound_text, verdict))
    return table(("aim", "measured", "bound", ""), rows)


def comparison_table(result: Result) -> list[str]:
    """The README's table: rows by guarantee, because only rows of one guarantee can be compared."""
    measured = {row["name"]: row for row in result["rows"]}
    rows = [measured[name] for group in GROUPS for name in SHOWN if name in measured and measured[name]["group"] == group]
    return [described(result), *table(
        ("guarantee", "engine", "program", "words/s", "latency p50 / p99"),
        ((row["group"], f"{row['engine']} {row['version']}", row["how"], f"{row['words_per_s'] / 1e6:.2f} M",
          _latency(result["latency_ms"].get(row["name"]))) for row in rows)), ""]


def _latency(percentiles: dict[str, float] | None) -> str:
    return "not measured" if percentiles is None else " / ".join(
        f"{percentiles[name]:{'.2f' if percentiles[name] < 10 else ',.0f'}}" for name in ("p50", "p99")) + " ms"


def wordcount_tables(result: Result) -> list[str]:
    rule = result["rule"]
    lines = ["", f"Rule for every row: {rule['warm_up_seconds']:g} s of warm-up, then the best of {rule['best_of']} windows of "
             f"{rule['window_seconds']:g} s. The whole command took {result['seconds'] / 60:.1f} minutes."]
    for group, meaning in GROUPS.items():
        rows = [row for row in result["rows"] if row["group"] == group]
        if rows:
            lines += ["", f"**{group.capitalize()}.** {meaning}",
                      *table(("engine", "row", "words/s", "program", "setting"),
                             ((f"{row['engine']} {row['version']}", f"`{row['name']}`", f"{row['words_per_s']:,.0f}",
                               row["how"], row["setting"]) for row in rows))]
    if result.get("failed"):
        lines += ["", f"**Not measured, because they failed:** {', '.join(result['failed'])}."]
    tried = [row for row in result["rows"] if row["trials"]]
    lines += ["", "Batch sizes tried, in lines:",
              *table(("row", "words/s by lines in a batch", "fastest", "why no larger one was tried"),
                     ((f"`{row['name']}`", ", ".join(f"{trial['batch_lines']:,}: {trial['words_per_s']:,.0f}"
                                                     for trial in row["trials"]),
                       f"{row['batch_lines']:,}", row["search_ended"]) for row in tried))]
    fixed = [row for row in result["rows"] if not row["trials"] and row["batch_lines"] > 1]
    names = ", ".join(f"`{row['name']}` ({row['batch_lines']:,})" for row in fixed) or "none"
    lines += ["", f"One fixed size, in lines, without a search: {names}. The other rows have no batch size."]
    lines += ["", "Ratios of rows with the same guarantee:",
              *table(("ratio", "measured"),
                     ((name.replace("_to_", " to "), ratio) for name, ratio in result["ratios"].items()))]
    lines += ["", "Latency from due to visible at 1,000 lines/s, in ms:",
              *table(("row", "p50", "p99"), ((f"`{name}`", f"{latency['p50']:.2f}", f"{latency['p99']:.2f}")
                                             for name, latency in result["latency_ms"].items()))]
    return [*lines, "", "One hop of a single tuple, from `emit` to `process`, in µs:",
            *table(("hop", "p50", "p99"), ((name.replace("_", " "), f"{hop['p50']:.0f}", f"{hop['p99']:.0f}")
                                           for name, hop in result["hop_us"].items()))]


def engines_tables(result: Result) -> list[str]:
    lines: list[str] = []
    if "rescale" in result:
        gaps = result["details"]["rescale"]["gaps"]
        lines += table(("another parallelism: ms without output", "first change", "median", "usual time of a batch"),
                       (("`microbatch`", gaps["microbatch_first_gap_ms"], gaps["microbatch_gap_ms"],
                         gaps["microbatch_usual_ms"]),
                        ("Structured Streaming, restarted", gaps["spark_restart_first_gap_ms"], gaps["spark_restart_gap_ms"],
                         gaps["spark_usual_ms"])))
    if "skew" in result["details"]:
        lines += table(("Zipf exponent", "hotter task before", "after", "by Spark's hash", "batch before, ms", "after",
                        "ratio"),
                       ((case["zipf"], f"{case['hashed']:.0%}", f"{case['rebalanced']:.0%}", f"{case['hashed_by_spark']:.0%}",
                         f"{case['before_ms']:,}", f"{case['after_ms']:,}", case["skew_batch_ratio"])
                        for case in result["details"]["skew"]["cases"]))
    return lines


def memory_tables(result: Result) -> list[str]:
    return table(("minutes", "tuples", "largest in the second third, MB", "in the last third"),
                 [(f"{result['minutes']:g}", f"{result['processed']:,}", result["second_third_max_mb"],
                   result["last_third_max_mb"])])


def _compared(result: Result) -> list[str]:
    return ["", f"{result['instances']:,} random situations, seed {result['seed']}; the optimum is 0 in "
            f"{result['zero_optimum']} of them and was not proven in {result['unknown_optimum']}; {result['common']} have a "
            "ratio for every scheduler.",
            *table(("scheduler", "mean ratio", "worst", "over", "overloads a node", "common"),
                   ((f"`{name}`", _figure(row["mean_ratio"], ".3f"), _figure(row["worst_ratio"], ".2f"), row["compared"],
                     row["overloaded"], _figure(row["common_ratio"], ".3f")) for name, row in result["schedulers"].items()))]


def scheduler_tables(result: Result) -> list[str]:
    sizes = sorted({(row["tasks"], row["slots"]) for row in result["sizes"]})
    names = dict.fromkeys(row["scheduler"] for row in result["sizes"])

    def of_sizes(title: str, figure: str, form: str) -> list[str]:
        figures = {(row["scheduler"], row["tasks"]): row[figure] for row in result["sizes"] if figure in row}
        if not figures:  # an older result
            return []
        return table((title, *(f"{tasks:,} tasks, {slots:,} slots" for tasks, slots in sizes)),
                     ((f"`{name}`", *(_figure(figures.get((name, tasks)), form) for tasks, _ in sizes)) for name in names))

    return [*of_sizes("seconds to plan", "seconds", ".3f"), *of_sizes("tuples/s between nodes", "inter_node", ",.0f"),
            *of_sizes("peak memory, MB", "peak_mb", ",.0f"), *_simulated(result.get("simulated", [])),
            *(_compared(result["compare"]) if result["compare"] else [])]


def _simulated(rows: Sequence[Result]) -> list[str]:
    if not rows:
        return []
    figures = ("nodes", "tasks", "hours", "seconds", "plans", "moves", "peak_mb")
    return table(("simulated", *figures[:-1], "peak memory, MB"),
                 ((f"`{row['scheduler']}`", *(f"{row[figure]:,.0f}" for figure in figures)) for row in rows))


def simulation_tables(result: Result) -> list[str]:
    return table(("tuples/s between nodes", "measured", "predicted for its placement", "simulated"),
                 ((f"`{run['scheduler']}`", *(f"{run[figure]:,.0f}" for figure in ("measured", "predicted", "simulated")))
                  for run in result["runs"]))


def replanning_tables(result: Result) -> list[str]:
    parts = {name: part for name, part in result.items() if isinstance(part, dict) and "inter_node_share" in part}
    return [*table(("", "tuples between nodes", "busiest worker, share of a core"),
                   ((name, f"{part['inter_node_share']:.1%}", f"{part['largest_worker_load']:.0%}")
                    for name, part in parts.items())),
            "", f"{result['tuples_in']:,} words in, {result['lost']:,} lost, {result['repeated']:,} repeated."]


def state_tables(result: Result) -> list[str]:
    raw, check = result["shape"]
    lines = ["", f"Reed–Solomon with {raw} raw and {check} check blocks on one core: cut {result['encode_mb_s']:,.0f} MB/s, "
             f"rebuilt with {check} raw blocks lost {result['decode_mb_s']:,.0f} MB/s. A wave every second takes "
             f"{result['wave_cost']:.1%} of the throughput."]
    for title, times in (("seconds to restore: MB of one task", result["restore_s"]),
                         ("tasks of 10 MB", result["restore_instances_s"])):
        lines += table((title, *next(iter(times.values()))),
                       ((size, *(_figure(seconds, ".4f") for seconds in sources.values())) for size, sources in times.items()))
    return [*lines, "", *result["skipped"].values()] if result["skipped"] else lines


def faults_tables(result: Result) -> list[str]:
    if result["stuck"]:
        return ["", f"**The run got stuck:** {result['stuck'].splitlines()[0]}"]
    missing, drivers = [kind for kind, of in result["kinds"].items() if not of["n"]], result["drivers"]
    never = f", except for: {', '.join(missing)}" if missing else ""
    return ["", f"{result['seconds'] / 60:.1f} minutes of faults with {_seeds(result['seeds'])}, then those of the driver. "
            f"Each kind had an effect{never}.",
            *table(("fault", "with effect", "without", "gap at the sink, median, s", "worst", "recovered after, median, s"),
                   ((kind, of["n"], result["without_effect"].get(kind, 0), *(_seconds(of[figure]) for figure in (
                       "gap_p50_ms", "gap_max_ms", "recovery_p50_ms"))) for kind, of in result["kinds"].items())),
            *table(("", "words in", "out", "lost", "repeated", "torn bytes", "counts wrong"),
                   [(part, f"{of['tuples_in']:,}", f"{of['tuples_out']:,}", of["lost"], f"{of['repeated']:,}", of["torn_bytes"],
                     f"{of['counts_wrong']:,} of {of['words']:,}")
                    for part, of in (("faults of the topology", result), ("faults of the driver", drivers["compared"]))]),
            "", f"{result['rate']:,} lines/s of {result['saturation']:,} at most, {drivers['rate']:,} with faults of the "
            f"driver; longest gap at the sink {_seconds(result['longest_gap_ms'])} s, between two commits "
            f"{_seconds(result['longest_uncommitted_ms'])} s; {_takeover(drivers)}.",
            *backpressure_table(result)]


def handover_tables(result: Result) -> list[str]:
    rates = ", ".join(f"{rate:,} lines/s with {tasks} tasks of each bolt" for tasks, rate in result["saturation"].items())
    lines = ["", f"{result['share']:.0%} of the highest rate: {rates}. {result['seconds_before']:g} s are measured before each "
             f"move. The whole command took {result['seconds'] / 60:.1f} minutes.",
             *table(list(COLUMNS.values()), map(cells, result["runs"]))]
    for run in result["runs"]:
        if staying := run["staying_groups"]:
            lines += ["", f"While {run['moved_groups']} key groups move, the words in the other groups of their task have a "
                      f"longest gap of {staying['longest_gap_ms']} ms (usually {staying['usual_gap_ms']} ms) and a p99 latency "
                      f"of {staying['p99_during_ms']:g} ms (before: {staying['p99_before_ms']:g} ms)."]
    if result["failed"]:
        lines += ["", f"**Not measured, because they failed:** {'; '.join(result['failed'])}."]
    return lines


def migration_tables(result: Result) -> list[str]:
    lines = ["", f"The papers' delays times {result['time_scale']:g}. The whole command took {result['seconds'] / 60:.1f} "
             "minutes."]
    for of_paper in paper_tables(result["runs"]):
        lines += ["", f"**{of_paper.title}.** {of_paper.note}", "", *markdown_table(of_paper)]
    if result["handover_standing"]:
        lines += ["", "**Hand-over against the best of the others.** Its worst column on each workload; up to 1, it is "
                  "no worse.", "", *standing_rows(result["handover_standing"])]
    if result["failed"]:
        lines += ["", f"**Not measured, because they failed:** {'; '.join(result['failed'])}."]
    return lines


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds[:-1]))} and {seeds[-1]}"


def _takeover(drivers: Result) -> str:
    return drivers["no_takeover"].rstrip(".") or (
        f"an overtaken driver ended {_seconds(drivers['overtaken_ended_ms'])} s after the start of the second")


def backpressure_table(result: Result) -> list[str]:
    waves, latencies = result["wave_under_backpressure_ms"], result["latency_under_backpressure_ms"]
    if result["backpressure_error"]:
        return ["", f"**Not measured before a slow sink:** {result['backpressure_error']}"]
    if waves is None:
        return []
    return table(("sink, ms for a row", "to a committed wave, at worst of three, ms", "latency p50, ms", "p99"),
                 ((ms, f"{wave:,.0f}", f"{latencies[ms]['p50']:,.0f}", f"{latencies[ms]['p99']:,.0f}")
                  for ms, wave in waves.items()))


def _seconds(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds / 1000:.1f}"


def _figure(value: float | None, spec: str) -> str:
    return "" if value is None else format(value, spec)


TABLES: dict[str, Callable[[Result], list[str]]] = {
    "wordcount": wordcount_tables, "engines": engines_tables, "memory": memory_tables,
    "scheduler": scheduler_tables, "simulation": simulation_tables, "replanning": replanning_tables, "state": state_tables,
    "handover": handover_tables, "migration": migration_tables, "elastic": elastic_tables,
    **dict.fromkeys(FAULTS, faults_tables)}
