"""The record of a migration between real processes: its longest gap agrees with the sinks' own log, and the verbs tell it."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.main import main
from millrace.control.events import Regrouped
from millrace.control.topology_state import TopologyState
from millrace.master.service import Master
from millrace.model.graph import TaskId, graph_of
from millrace.runtime.worker.process import REPORT_SECONDS
from support.processes.forked import ForkedCluster
from support.topologies.stamping import STAMP, Stamped, stamps

SECONDS = 60.0  # a safety limit, never a measure
RESOLUTION_MS = 100.0
UNHURRIED, TALLIED = TaskId("unhurried", 0), TaskId("tallied", 0)
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ForkedCluster]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="run") as runtime_directory:
        patch.setenv("XDG_RUNTIME_DIR", runtime_directory)
        patch.setenv("XDG_STATE_HOME", f"{runtime_directory}/state")
        patch.setenv("COLUMNS", "200")
        with ForkedCluster(3, nodes=3, settings={"history.url": f"sqlite:///{runtime_directory}/history.db"}) as made:
            yield made


@pytest.fixture
def cli(cluster: ForkedCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Run commands in this process."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["millrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    yield run
    signal.signal(signal.SIGTERM, before)


class Stream:
    """A running `Stamped` that has processed something for a while."""

    def __init__(self, master: Master, directory: Path, **config: Any) -> None:
        self.master, self.directory = master, directory
        master.submit(graph_of(Stamped, config={"path": str(directory), "rate": 2000.0, "seconds": 0.0, **config}), False)
        self.until(lambda: self.state.status == "running" and len(stamps(directory)) > 500)

    @property
    def state(self) -> TopologyState:
        return self.master.state.topologies["stamped"]

    def until(self, condition: Callable[[], bool]) -> None:
        texts = [event["text"] for event in list(self.master.events)]
        assert self.master.wait_until(condition, SECONDS), texts

    def records(self) -> list[dict[str, Any]]:
        """The final records; on the master's thread."""
        return [row for row in self.master.scheduling.migrations.past("stamped") if row["final"]]

    def recorded(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.master.call(self.records)
        return found

    def end(self) -> None:
        self.master.kill("stamped", wait=0)
        assert self.master.wait_until(lambda: "stamped" not in self.master.state.topologies, SECONDS)


@pytest.fixture
def stream(cluster: ForkedCluster, tmp_path: Path) -> Iterator[Stream]:
    cluster.make_whole(3, SECONDS)
    directory, gate = tmp_path / "stamps", tmp_path / "gate"
    directory.mkdir()
    gate.touch()
    made = Stream(cluster.master, directory, seconds=0.4, gate=str(gate))
    yield made
    gate.touch()
    made.end()


def longest_gap_ms(times: list[float], record: dict[str, Any]) -> float:
    """The longest gap in the sinks' own log that touches the migration."""
    began = record["at"] - (time.time() - time.monotonic())
    ended = began + record["phases_ms"]["done"] / 1000
    return 1000 * max(later - earlier for earlier, later in pairwise(times) if earlier <= ended and later >= began)


def move(stream: Stream, known: int) -> dict[str, Any]:
    target = (stream.state.places[UNHURRIED].slot + 1) % 3
    stream.master.move("stamped", UNHURRIED, target)
    stream.until(lambda: len(stream.records()) > known)
    return stream.recorded()[known]


def test_the_longest_gap_is_that_of_the_sinks_own_log(stream: Stream) -> None:
    before = len(stream.recorded())
    record = move(stream, before)
    seen = longest_gap_ms(stamps(stream.directory), record)
    (restored,) = STAMP.unpack(stream.directory.with_name("restored").read_bytes())  # the new incarnation took that long
    assert record["longest_gap_ms"] == pytest.approx(seen, abs=RESOLUTION_MS) and seen >= restored * 1000
    assert (record["strategy"], record["cause"], record["outcome"], record["final"]) == ("handover", "person", "done", True)
    assert (record["lost"], record["replayed"], record["repeated"]) == (0, 0, 0)
    assert record["moved"][0]["pause_ms"] >= restored * 1000


def test_the_longest_gap_while_key_groups_move_is_that_of_the_sinks_own_log(stream: Stream) -> None:
    before, owners = len(stream.recorded()), stream.state.key_groups["tallied"]
    wanted = {group: 1 - owner for group, owner in enumerate(owners) if group % 4 == 0}
    stream.master.call(lambda: stream.master.tell(Regrouped("stamped", "tallied", wanted)))
    stream.until(lambda: len(stream.records()) > before)
    record = stream.recorded()[before]
    seen = longest_gap_ms(stamps(stream.directory), record)
    assert record["longest_gap_ms"] == pytest.approx(seen, abs=RESOLUTION_MS)
    assert (record["strategy"], record["cause"], record["outcome"]) == ("handover", "person", "done")
    moved = {(move["task"], move["to_task"]): move["groups"] for move in record["moved"]}
    assert moved == {(f"tallied[{owner}]", f"tallied[{1 - owner}]"): [group for group in wanted if owners[group] == owner]
                     for owner in (0, 1)}
    assert all(move["precopied_bytes"] > 0 and move["pause_ms"] >= 0 for move in record["moved"])
    assert (record["lost"], record["replayed"], record["repeated"]) == (0, 0, 0)


def test_a_death_is_recorded_too(cluster: ForkedCluster, stream: Stream) -> None:
    before = len(stream.recorded())
    slot = stream.state.places[UNHURRIED].slot
    cluster.kill(slot)
    stream.until(lambda: len(stream.records()) > before)
    record = stream.recorded()[before]
    assert record["strategy"] == "rollback" and record["cause"].startswith(f"loss: worker {slot} lost: ")
    assert "unhurried[0]" in {move["task"] for move in record["moved"]}
    # If sinks died with the worker, the buckets that it had not reported are missing.
    unreported = 1000 * REPORT_SECONDS if "stamps" in {TaskId.parse(move["task"]).component for move in record["moved"]} else 0
    seen = longest_gap_ms(stamps(stream.directory), record)
    assert record["longest_gap_ms"] == pytest.approx(seen, abs=RESOLUTION_MS + unreported)


def test_moves_are_shown_queued_and_cancelled(stream: Stream, cli: Cli) -> None:
    gate, before = stream.directory.with_name("gate"), len(stream.recorded())
    source, other = stream.state.places[UNHURRIED].slot, stream.state.places[TALLIED].slot
    gate.unlink()  # the new incarnation is not made until it is back
    code, out, _ = cli("move", "unhurried[0]", str((source + 1) % 3))
    assert code == 0 and "it is handed over while the stream runs; `moves` shows its progress" in out
    code, out, _ = cli("move", "tallied[0]", str((other + 1) % 3), "--json")
    assert code == 0 and json.loads(out)["waits_for"] == ["unhurried[0]"]
    (shown,) = json.loads(cli("moves", "--json")[1])
    assert (shown["topology"], shown["phase"], shown["progress"]) == ("stamped", "arm", 0.0)
    assert [move["task"] for move in shown["moving"]] == ["unhurried[0]"]
    assert [move["task"] for move in shown["waiting"]] == ["tallied[0]"]
    code, out, _ = cli("moves")
    assert code == 0 and "arm, " in out and f"tallied[0] to worker {(other + 1) % 3} (person)" in out
    assert cli("moves", "--cancel", "tallied[0]")[:2] == (0, f"tallied[0] of stamped stays on worker {other}\n")
    assert cli("moves", "--cancel", "unhurried[0]")[:2] == (0, f"unhurried[0] of stamped stays on worker {source}\n")
    assert cli("moves")[1] == "nothing is being moved\n"
    gate.touch()
    stream.until(lambda: len(stream.records()) > before)
    record = stream.recorded()[before]
    assert (record["outcome"], record["reason"]) == ("cancelled", "a person cancelled it")
    assert stream.state.places[UNHURRIED].slot == source and stream.state.places[TALLIED].slot == other
    texts = [event["text"] for event in json.loads(cli("events", "--task", "tallied[0]", "--json")[1])]
    assert texts[-3:] == [f"tallied[0] moves from worker {other} to worker {(other + 1) % 3}",
                          "tallied[0] will move after unhurried[0]", "tallied[0] not moved: a person cancelled it"]


def test_the_verbs(stream: Stream, cli: Cli, tmp_path: Path) -> None:
    before = len(stream.recorded())
    record = move(stream, before)
    code, out, err = cli("migrations", "--topology", "stamped", "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)
    assert rows[-1] == record and rows == sorted(rows, key=lambda row: row["id"])
    code, out, err = cli("migrations", str(record["id"]), "--json")
    (row,) = json.loads(out)
    assert (code, err) == (0, "") and {**record, "timeline": row["timeline"]} == row and len(row["timeline"]) > 20
    code, out, _ = cli("migrations", str(record["id"]))
    assert code == 0 and "unhurried[0]" in out and "cause     person" in out
    code, out, _ = cli("migrations")
    assert code == 0 and "handover" in out
    for name, start in (("move.png", b"\x89PNG"), ("move.svg", b"<?xml")):
        code, out, _ = cli("migrations", str(record["id"]), "--plot", str(tmp_path / name))
        assert code == 0 and f"drawn to {tmp_path / name}" in out and (tmp_path / name).read_bytes().startswith(start)
    for arguments, says in ((("999",), "there is no migration 999"), (("--plot", "x.svg"), "--plot draws one migration")):
        code, out, err = cli("migrations", *arguments)
        assert (code, out) == (1, "") and says in err and err.count("\n") == 1
    assert json.loads(cli("moves", "--json")[1]) == [] and cli("moves")[1] == "nothing is being moved\n"
    code, out, err = cli("moves", "--cancel", "unhurried[0]")
    assert (code, out) == (1, "") and "unhurried[0] of 'stamped' is not being moved, and neither are key groups of it" in err
    code, out, _ = cli("events", "--topology", "stamped", "--task", "unhurried[0]", "--json")
    events = json.loads(out)
    assert code == 0 and all("unhurried[0]" in event["tasks"] or not event["tasks"] for event in events)
    named = [event for event in events if event["tasks"]]
    assert named[-1]["text"].startswith("unhurried[0] moved to worker") and named[-1]["cause"] == "person"
    code, out, _ = cli("events")
    assert code == 0 and "unhurried[0] moves from worker" in out and "cause: person" in out


def test_records_outlive_the_master(cluster: ForkedCluster, stream: Stream) -> None:
    record = move(stream, len(stream.recorded()))
    history = cluster.master.scheduling.records.open()
    assert history is not None and history.flush(SECONDS)
    kept = history.migrations(1)[0]
    assert kept["timeline"] and {name: value for name, value in kept.items() if name != "timeline"} == record
