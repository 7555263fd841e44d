"""Schedulers run in a separate process: every request gets an answer or an error, and the next request is answered too."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
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

SECONDS = 60.0  # a safety limit; nothing is measured by it
GRAPH = graph_of(WordCount, "words")
CLUSTER = Cluster((Node("n0", 2, 1000.0, 4096), Node("n1", 2, 1000.0, 4096)), (Slot("n0", "e", 0), Slot("n1", "e", 1)))
FIRST = Even().schedule((GRAPH,), CLUSTER, {}, {})
assert isinstance(FIRST, NewPlan)
SITUATION = Situation((GRAPH,), CLUSTER, {}, FIRST.plans)


@pytest.fixture(scope="module")
def scheduler_process() -> Iterator[SchedulerProcess]:
    """Shared by all tests that leave it usable, even if its process was killed."""
    made = SchedulerProcess()
    yield made
    made.close()


@pytest.fixture
def fresh() -> Iterator[SchedulerProcess]:
    """A scheduler process that has not started yet."""
    made = SchedulerProcess()
    yield made
    made.close()


def begin(scheduler_process: SchedulerProcess, scheduler: str, time_limit: float = SECONDS,
          **request: Any) -> Future[SchedulerAnswer | SchedulerFailed]:
    future: Future[SchedulerAnswer | SchedulerFailed] = Future()
    name = scheduler if ":" in scheduler or scheduler in ("even", "otd") else f"support.user_schedulers:{scheduler}"
    scheduler_process.ask({"scheduler": name, "parameters": {}, "situation": SITUATION, **request}, time_limit,
                          future.set_result)
    return future


def ask(scheduler_process: SchedulerProcess, scheduler: str, time_limit: float = SECONDS,
        **request: Any) -> SchedulerAnswer | SchedulerFailed:
    return begin(scheduler_process, scheduler, time_limit, **request).result(SECONDS)


def check(scheduler_process: SchedulerProcess, scheduler: str, **parameters: Any) -> SchedulerAnswer | SchedulerFailed:
    future: Future[SchedulerAnswer | SchedulerFailed] = Future()
    scheduler_process.ask({"scheduler": scheduler, "parameters": parameters}, SECONDS, future.set_result)
    return future.result(SECONDS)


def pid(scheduler_process: SchedulerProcess) -> int:
    assert scheduler_process._child is not None
    return int(scheduler_process._child._process.pid)


def assert_usable(scheduler_process: SchedulerProcess) -> None:
    answer = ask(scheduler_process, "even")
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
def test_an_error_is_returned_and_the_process_survives(scheduler_process: SchedulerProcess, scheduler: str, says: str) -> None:
    assert_usable(scheduler_process)
    before = pid(scheduler_process)
    for _ in range(2):
        answer = ask(scheduler_process, scheduler)
        assert isinstance(answer, SchedulerFailed) and says in str(answer), answer
        assert "\n" not in str(answer)
    assert_usable(scheduler_process)
    assert pid(scheduler_process) == before


def test_an_error_names_the_line_in_user_code(scheduler_process: SchedulerProcess) -> None:
    assert "support/user_schedulers.py:" in str(ask(scheduler_process, "Raises"))


def test_a_scheduler_that_hangs_is_stopped(scheduler_process: SchedulerProcess) -> None:
    assert_usable(scheduler_process)
    process = psutil.Process(pid(scheduler_process))
    for _ in range(2):
        answer = ask(scheduler_process, "Hangs", time_limit=0.2)
        assert isinstance(answer, SchedulerFailed)
        assert "no answer within 0.2 s" in str(answer) and "--time-limit" in str(answer)
        assert not process.is_running()
    assert_usable(scheduler_process)


def test_children_of_a_scheduler_are_stopped(fresh: SchedulerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRANDCHILD", str(tmp_path / "pid"))
    os.mkfifo(tmp_path / "pid")
    future = begin(fresh, "HangsWithAChild", time_limit=1e6)
    grandchild = psutil.Process(int((tmp_path / "pid").read_text()))
    fresh.renew()
    assert isinstance(future.result(SECONDS), SchedulerFailed)
    psutil.wait_procs([grandchild], timeout=SECONDS)
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE
    assert_usable(fresh)


def test_a_scheduler_that_exits(scheduler_process: SchedulerProcess) -> None:
    for _ in range(2):
        assert "its process ended with code 3" in str(ask(scheduler_process, "Exits"))
    assert_usable(scheduler_process)


def test_a_process_killed_between_two_requests(scheduler_process: SchedulerProcess) -> None:
    assert_usable(scheduler_process)
    process = psutil.Process(pid(scheduler_process))
    process.kill()
    psutil.wait_procs([process], timeout=SECONDS)
    assert_usable(scheduler_process)


def test_a_scheduler_that_prints_does_not_write_to_stdout(fresh: SchedulerProcess, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        answer = ask(fresh, "Prints")
        assert isinstance(answer, dict) and answer["reason"] == "said it all"
    assert "talkative" not in capfd.readouterr().out, "stdout is the caller's: there may be JSON on it"
    assert_usable(fresh)


def test_a_scheduler_that_leaks_memory(fresh: SchedulerProcess) -> None:
    for times in (1, 2, 3):
        assert ask(fresh, "Leaks") == {"kind": "no-change", "reason": f"{times} times 4 MB", "overload": []}
    assert_usable(fresh)


def test_numpy_numbers_become_python_numbers(scheduler_process: SchedulerProcess) -> None:
    answer = ask(scheduler_process, "WithArrays")
    assert isinstance(answer, dict), answer
    result = check_result(SITUATION, result_from_json(answer))
    assert isinstance(result, NewPlan)
    assert all(type(slot) is int for slot in result.plans["words"].placement.values())


def test_a_situation_is_encoded_beside_the_thread_that_asks(scheduler_process: SchedulerProcess,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    threads, to_json = [], Situation.to_json

    def noted(situation: Situation) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return to_json(situation)

    monkeypatch.setattr(Situation, "to_json", noted)
    assert_usable(scheduler_process)
    assert threads == ["millrace scheduler"]


def test_an_invalid_request(scheduler_process: SchedulerProcess) -> None:
    assert "format" in str(ask(scheduler_process, "even", situation={"format": "x"}))
    assert isinstance(ask(scheduler_process, "even", situation=object()), SchedulerFailed)
    assert isinstance(ask(scheduler_process, "even", parameters={"n": 2**70}), SchedulerFailed)
    assert_usable(scheduler_process)


def test_a_callback_that_raises(scheduler_process: SchedulerProcess) -> None:
    def done(answer: SchedulerAnswer | SchedulerFailed) -> None:
        raise RuntimeError("not now")

    scheduler_process.ask({"scheduler": "even", "parameters": {}, "situation": SITUATION}, SECONDS, done)
    assert_usable(scheduler_process)


def test_concurrent_requests_are_answered_in_turn(scheduler_process: SchedulerProcess) -> None:
    names = ["even", "Raises", "Exits", "otd", "ReturnsText", "Prints"] * 2
    answers = [future.result(SECONDS) for future in [begin(scheduler_process, name) for name in names]]
    assert [isinstance(answer, dict) for answer in answers] == [name in ("even", "otd", "Prints") for name in names]


def test_a_large_request_and_a_large_answer(scheduler_process: SchedulerProcess) -> None:
    graph = graph_of(WordCount, "words", par={"split": 20_000, "count": 100})
    made = Even().schedule((graph,), CLUSTER, {}, {})
    assert isinstance(made, NewPlan)
    large = Situation((graph,), CLUSTER, {}, made.plans)
    answer = ask(scheduler_process, "Shuffles", situation=large)
    assert isinstance(answer, dict), answer
    assert isinstance(check_result(large, result_from_json(answer)), NewPlan)


@pytest.mark.parametrize(("scheduler", "says"), [
    ("support.user_schedulers:Nope", "Nope"), ("no_such_module:X", "no_such_module"),
    ("nope", "there is no scheduler named 'nope'"),
    ("support.user_schedulers:NOT_A_SCHEDULER", "is not a class with a method schedule"),
    ("support.user_schedulers:CannotBeMade", "no licence"), ("support.user_schedulers:shifted", "is not a class"),
])
def test_an_unusable_scheduler(scheduler_process: SchedulerProcess, scheduler: str, says: str) -> None:
    answer = check(scheduler_process, scheduler)
    assert isinstance(answer, SchedulerFailed) and says in str(answer), answer
    assert_usable(scheduler_process)


def test_parameters_are_checked_in_the_scheduler_process(scheduler_process: SchedulerProcess) -> None:
    assert check(scheduler_process, "support.user_schedulers:Tuned", least=3) == {
        "parameters": {"least": 3, "label": "x"}, "period": 17.0, "weighs_itself": False, "cool_down": 10.0,
        "estimator": "ewma", "packing": 0.9}
    assert "out of range" in str(check(scheduler_process, "support.user_schedulers:Tuned", least=10))
    answer = check(scheduler_process, "support.user_schedulers:Tuned", most=1)
    assert "has no parameter 'most'; it has least, label" in str(answer)
    answer = ask(scheduler_process, "Tuned", parameters={"least": 4, "label": "at least"})
    assert isinstance(answer, dict) and result_from_json(answer) == NoChange("at least 4")


def test_an_edited_scheduler_is_reloaded(scheduler_process: SchedulerProcess, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # bytecode records a file's age only in seconds
    for reason in ("first", "second"):
        (tmp_path / "their_scheduler.py").write_text(textwrap.dedent(f"""
            from millrace.schedulers.base import NoChange

            class Theirs:
                def schedule(self, graphs, cluster, load, plan):
                    return NoChange({reason!r})
        """))
        scheduler_process.renew()
        answer = ask(scheduler_process, "their_scheduler:Theirs")
        assert isinstance(answer, dict) and answer["reason"] == reason


def test_a_hanging_request_can_be_abandoned(scheduler_process: SchedulerProcess) -> None:
    assert_usable(scheduler_process)
    process = psutil.Process(pid(scheduler_process))
    abandoned = [begin(scheduler_process, name, time_limit=1e6) for name in ("Hangs", "Hangs", "even")]
    scheduler_process.renew()
    later = begin(scheduler_process, "even")
    assert all(isinstance(future.result(SECONDS), SchedulerFailed) for future in abandoned)
    assert isinstance(later.result(SECONDS), dict)
    assert not process.is_running()
    for _ in range(2):
        scheduler_process.renew()
        assert_usable(scheduler_process)


def scheduler_processes() -> set[int]:
    """The pids of all scheduler processes that are children of this process."""
    return {child.pid for child in psutil.Process().children() if "scheduler_child" in " ".join(child.cmdline())}


def assert_no_process_but(before: set[int]) -> None:
    assert scheduler_processes() <= before


def test_a_process_for_each_request() -> None:
    before, scheduler_process = scheduler_processes(), SchedulerProcess(keep=False)
    for name in ("Leaks", "Leaks", "Exits", "Leaks"):
        answer = ask(scheduler_process, name)
        assert isinstance(answer, SchedulerFailed) if name == "Exits" else answer["reason"] == "1 times 4 MB"  # type: ignore
    scheduler_process.close()
    assert_no_process_but(before)


def test_close_while_requests_are_pending(fresh: SchedulerProcess) -> None:
    assert_usable(fresh)
    process = psutil.Process(pid(fresh))
    waiting = [begin(fresh, "Hangs", time_limit=1e6) for _ in range(3)]
    fresh.close()
    assert all(isinstance(future.result(0), SchedulerFailed) for future in waiting), "nobody is left waiting"
    assert not process.is_running()
    assert fresh._thread is not None and not fresh._thread.is_alive()


def test_close_while_the_process_starts() -> None:
    before, scheduler_process = scheduler_processes(), SchedulerProcess()
    waiting = begin(scheduler_process, "Hangs", time_limit=1e6)
    scheduler_process.close()
    assert isinstance(waiting.result(0), SchedulerFailed)
    assert scheduler_process._thread is not None and not scheduler_process._thread.is_alive()
    assert_no_process_but(before)


def test_close_before_the_first_request() -> None:
    scheduler_process = SchedulerProcess()
    scheduler_process.close()
    scheduler_process.close()


def test_no_descriptor_is_left_open(scheduler_process: SchedulerProcess) -> None:
    assert_usable(scheduler_process)
    gc.collect()  # closes whatever earlier tests left open
    before = psutil.Process().num_fds()
    for _ in range(3):
        ask(scheduler_process, "Exits")
    assert_usable(scheduler_process)
    assert psutil.Process().num_fds() <= before


@pytest.mark.parametrize("scheduler", ["support.user_schedulers:Hangs", "even"])
def test_the_process_ends_when_its_master_is_killed(scheduler: str) -> None:
    code = """
        import sys, threading
        from millrace.master.scheduling.scheduler_process import SchedulerProcess
        from test_scheduler_process import SITUATION, pid, assert_usable, begin
        scheduler_process = SchedulerProcess()
        assert_usable(scheduler_process)
        begin(scheduler_process, sys.argv[1])
        print(pid(scheduler_process), flush=True)
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
