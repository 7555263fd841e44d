"""Schedulers in a process of their own: whatever they do, the answer or what went wrong comes back, and the next one is
answered too."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from millrace.errors import SchedulerFailed
from millrace.master.scheduling.scheduler_process import SchedulerAnswer, SchedulerProcess
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import graph_of
from millrace.model.situation import Situation
from millrace.schedulers.base import NewPlan, NoChange
from millrace.schedulers.even import Even
from millrace.schedulers.rules import check_result, result_from_json
from millrace.workloads.wordcount import WordCount

SECONDS = 60.0  # a safety limit, never a measure
GRAPH = graph_of(WordCount, "words")
CLUSTER = Cluster((Node("n0", 2, 1000.0, 4096), Node("n1", 2, 1000.0, 4096)), (Slot("n0", "e", 0), Slot("n1", "e", 1)))
FIRST = Even().schedule((GRAPH,), CLUSTER, {}, {})
assert isinstance(FIRST, NewPlan)
SITUATION = Situation((GRAPH,), CLUSTER, {}, FIRST.plans)


@pytest.fixture(scope="module")
def planner() -> Iterator[SchedulerProcess]:
    """One for all that leave it as it was, whatever its process has been through."""
    made = SchedulerProcess()
    yield made
    made.close()


@pytest.fixture
def fresh() -> Iterator[SchedulerProcess]:
    """One whose process is not started yet."""
    made = SchedulerProcess()
    yield made
    made.close()


def begin(planner: SchedulerProcess, scheduler: str, time_limit: float = SECONDS,
          **request: Any) -> Future[SchedulerAnswer | SchedulerFailed]:
    future: Future[SchedulerAnswer | SchedulerFailed] = Future()
    name = scheduler if ":" in scheduler or scheduler in ("even", "otd") else f"support.user_schedulers:{scheduler}"
    planner.ask({"scheduler": name, "parameters": {}, "situation": SITUATION.to_json(), **request}, time_limit,
                future.set_result)
    return future


def ask(planner: SchedulerProcess, scheduler: str, time_limit: float = SECONDS,
        **request: Any) -> SchedulerAnswer | SchedulerFailed:
    return begin(planner, scheduler, time_limit, **request).result(SECONDS)


def check(planner: SchedulerProcess, scheduler: str, **parameters: Any) -> SchedulerAnswer | SchedulerFailed:
    future: Future[SchedulerAnswer | SchedulerFailed] = Future()
    planner.ask({"scheduler": scheduler, "parameters": parameters}, SECONDS, future.set_result)
    return future.result(SECONDS)


def pid(planner: SchedulerProcess) -> int:
    assert planner._child is not None
    return int(planner._child._process.pid)


def assert_it_lives(planner: SchedulerProcess) -> None:
    answer = ask(planner, "even")
    assert isinstance(answer, dict), answer
    check_result(SITUATION, result_from_json(answer))


@pytest.mark.parametrize(("scheduler", "says"), [
    ("Raises", "it raised KeyError: '[/bold] no such thing\\nand a second line', at "),
    ("ReturnsText", "it returned str; expected NewPlan, NoChange or CannotPlace"),
    ("ForgetsATask", "1 tasks have no slot"),
    ("UsesADeadSlot", "it uses slot 77, and the live slots are [0, 1]"),
    ("WrongOwner", "belongs to none of its"),
    ("SysExits", "it raised SystemExit: enough"),
    ("Unsendable", "has version 1180591620717411303424 where"),
    ("CannotSay", "Mute"),
])
def test_what_is_wrong_comes_back_and_the_process_lives_on(planner: SchedulerProcess, scheduler: str, says: str) -> None:
    assert_it_lives(planner)
    before = pid(planner)
    for _ in range(2):
        answer = ask(planner, scheduler)
        assert isinstance(answer, SchedulerFailed) and says in str(answer), answer
        assert "\n" not in str(answer)
    assert_it_lives(planner)
    assert pid(planner) == before


def test_an_error_of_the_users_has_its_place_in_their_code(planner: SchedulerProcess) -> None:
    assert "support/user_schedulers.py:" in str(ask(planner, "Raises"))


def test_one_that_takes_for_ever_is_stopped(planner: SchedulerProcess) -> None:
    assert_it_lives(planner)
    process = psutil.Process(pid(planner))
    for _ in range(2):
        answer = ask(planner, "Hangs", time_limit=0.2)
        assert isinstance(answer, SchedulerFailed)
        assert "no answer within 0.2 s" in str(answer) and "--time-limit" in str(answer)
        assert not process.is_running()
    assert_it_lives(planner)


def test_what_it_has_started_is_stopped_too(fresh: SchedulerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRANDCHILD", str(tmp_path / "pid"))
    os.mkfifo(tmp_path / "pid")
    asked = begin(fresh, "HangsWithAChild", time_limit=3.0)
    grandchild = psutil.Process(int((tmp_path / "pid").read_text()))
    assert isinstance(asked.result(SECONDS), SchedulerFailed)
    psutil.wait_procs([grandchild], timeout=SECONDS)
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE
    assert_it_lives(fresh)


def test_one_that_ends_its_process(planner: SchedulerProcess) -> None:
    for _ in range(2):
        assert "its process ended with code 3" in str(ask(planner, "Exits"))
    assert_it_lives(planner)


def test_a_process_that_was_killed_between_two_questions(planner: SchedulerProcess) -> None:
    assert_it_lives(planner)
    process = psutil.Process(pid(planner))
    process.kill()
    psutil.wait_procs([process], timeout=SECONDS)
    assert_it_lives(planner)


def test_a_talkative_one_disturbs_nobody(fresh: SchedulerProcess, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        answer = ask(fresh, "Prints")
        assert isinstance(answer, dict) and answer["reason"] == "said it all"
    assert "talkative" not in capfd.readouterr().out, "stdout is the caller's: there may be JSON on it"
    assert_it_lives(fresh)


def test_one_that_leaks(fresh: SchedulerProcess) -> None:
    for times in (1, 2, 3):
        assert ask(fresh, "Leaks") == {"kind": "no-change", "reason": f"{times} times 4 MB", "overload": []}
    assert_it_lives(fresh)


def test_numbers_of_numpy_come_back_as_numbers(planner: SchedulerProcess) -> None:
    answer = ask(planner, "WithArrays")
    assert isinstance(answer, dict), answer
    result = check_result(SITUATION, result_from_json(answer))
    assert isinstance(result, NewPlan)
    assert all(type(slot) is int for slot in result.plans["words"].placement.values())


def test_a_question_that_is_nonsense(planner: SchedulerProcess) -> None:
    assert "format" in str(ask(planner, "even", situation={"format": "x"}))
    assert isinstance(ask(planner, "even", situation=object()), SchedulerFailed)
    assert isinstance(ask(planner, "even", parameters={"n": 2**70}), SchedulerFailed)
    assert_it_lives(planner)


def test_someone_who_cannot_take_the_answer(planner: SchedulerProcess) -> None:
    def done(answer: SchedulerAnswer | SchedulerFailed) -> None:
        raise RuntimeError("not now")

    planner.ask({"scheduler": "even", "parameters": {}, "situation": SITUATION.to_json()}, SECONDS, done)
    assert_it_lives(planner)


def test_many_questions_at_once_are_answered_in_turn(planner: SchedulerProcess) -> None:
    names = ["even", "Raises", "Exits", "otd", "ReturnsText", "Prints"] * 2
    answers = [future.result(SECONDS) for future in [begin(planner, name) for name in names]]
    assert [isinstance(answer, dict) for answer in answers] == [name in ("even", "otd", "Prints") for name in names]


def test_a_large_question_and_a_large_answer(planner: SchedulerProcess) -> None:
    graph = graph_of(WordCount, "words", par={"split": 20_000, "count": 100})
    made = Even().schedule((graph,), CLUSTER, {}, {})
    assert isinstance(made, NewPlan)
    large = Situation((graph,), CLUSTER, {}, made.plans)
    answer = ask(planner, "Shuffles", situation=large.to_json())
    assert isinstance(answer, dict), answer
    assert isinstance(check_result(large, result_from_json(answer)), NewPlan)


@pytest.mark.parametrize(("scheduler", "says"), [
    ("support.user_schedulers:Nope", "Nope"), ("no_such_module:X", "no_such_module"),
    ("nope", "there is no scheduler named 'nope'"),
    ("support.user_schedulers:NOT_A_SCHEDULER", "is not a class with a method schedule"),
    ("support.user_schedulers:CannotBeMade", "no licence"), ("support.user_schedulers:shifted", "is not a class"),
])
def test_one_that_cannot_be_used(planner: SchedulerProcess, scheduler: str, says: str) -> None:
    answer = check(planner, scheduler)
    assert isinstance(answer, SchedulerFailed) and says in str(answer), answer
    assert_it_lives(planner)


def test_parameters_are_checked_where_the_scheduler_is(planner: SchedulerProcess) -> None:
    assert check(planner, "support.user_schedulers:Tuned", least=3) == {
        "parameters": {"least": 3, "label": "x"}, "period": 17.0, "weighs_itself": False}
    assert "out of range" in str(check(planner, "support.user_schedulers:Tuned", least=10))
    assert "has no parameter 'most'; it has least, label" in str(check(planner, "support.user_schedulers:Tuned", most=1))
    answer = ask(planner, "Tuned", parameters={"least": 4, "label": "at least"})
    assert isinstance(answer, dict) and result_from_json(answer) == NoChange("at least 4")


def test_one_that_was_mended_is_read_anew(planner: SchedulerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # by the second: a file's age is not finer in bytecode
    for reason in ("first", "second"):
        (tmp_path / "their_scheduler.py").write_text(textwrap.dedent(f"""
            from millrace.schedulers.base import NoChange

            class Theirs:
                def schedule(self, graphs, cluster, load, plan):
                    return NoChange({reason!r})
        """))
        planner.renew()
        answer = ask(planner, "their_scheduler:Theirs")
        assert isinstance(answer, dict) and answer["reason"] == reason


def test_what_takes_for_ever_can_be_given_up(planner: SchedulerProcess) -> None:
    assert_it_lives(planner)
    process = psutil.Process(pid(planner))
    given_up = [begin(planner, name, time_limit=1e6) for name in ("Hangs", "Hangs", "even")]
    planner.renew()
    later = begin(planner, "even")
    assert all(isinstance(future.result(SECONDS), SchedulerFailed) for future in given_up)
    assert isinstance(later.result(SECONDS), dict)
    assert not process.is_running()
    for _ in range(2):
        planner.renew()
        assert_it_lives(planner)


def planner_processes() -> set[int]:
    """Children of this one that schedule, of whatever planner."""
    return {child.pid for child in psutil.Process().children() if "planner_child" in " ".join(child.cmdline())}


def assert_no_process_but(before: set[int]) -> None:
    assert planner_processes() <= before


def test_a_process_for_each_question() -> None:
    before, planner = planner_processes(), SchedulerProcess(keep=False)
    for name in ("Leaks", "Leaks", "Exits", "Leaks"):
        answer = ask(planner, name)
        assert isinstance(answer, SchedulerFailed) if name == "Exits" else answer["reason"] == "1 times 4 MB"  # type: ignore
    planner.close()
    assert_no_process_but(before)


def test_it_can_be_closed_while_a_question_is_open(fresh: SchedulerProcess) -> None:
    assert_it_lives(fresh)
    process = psutil.Process(pid(fresh))
    waiting = [begin(fresh, "Hangs", time_limit=1e6) for _ in range(3)]
    fresh.close()
    assert all(isinstance(future.result(0), SchedulerFailed) for future in waiting), "nobody is left waiting"
    assert not process.is_running()
    assert fresh._thread is not None and not fresh._thread.is_alive()


def test_it_can_be_closed_while_its_process_comes_up() -> None:
    before, planner = planner_processes(), SchedulerProcess()
    waiting = begin(planner, "Hangs", time_limit=1e6)
    planner.close()
    assert isinstance(waiting.result(0), SchedulerFailed)
    assert planner._thread is not None and not planner._thread.is_alive()
    assert_no_process_but(before)


def test_it_can_be_closed_without_ever_having_been_asked() -> None:
    planner = SchedulerProcess()
    planner.close()
    planner.close()


def test_no_descriptor_is_left_open(planner: SchedulerProcess) -> None:
    assert_it_lives(planner)
    gc.collect()  # what earlier tests have left open is closed now, or not before the end
    before = psutil.Process().num_fds()
    for _ in range(3):
        ask(planner, "Exits")
    assert_it_lives(planner)
    assert psutil.Process().num_fds() <= before


@pytest.mark.parametrize("scheduler", ["support.user_schedulers:Hangs", "even"])
def test_the_process_ends_when_its_master_is_killed(scheduler: str) -> None:
    code = """
        import sys, threading
        from millrace.master.scheduling.scheduler_process import SchedulerProcess
        from test_planner import SITUATION, pid, assert_it_lives, begin
        planner = SchedulerProcess()
        assert_it_lives(planner)
        begin(planner, sys.argv[1])
        print(pid(planner), flush=True)
        threading.Event().wait()
    """
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *sys.path])
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), scheduler], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": path}) as master:
        assert master.stdout is not None
        child = psutil.Process(int(master.stdout.readline()))
        os.kill(master.pid, signal.SIGKILL)
        gone, alive = psutil.wait_procs([child], timeout=SECONDS)
    assert not alive or all(process.status() == psutil.STATUS_ZOMBIE for process in alive), (gone, alive)
