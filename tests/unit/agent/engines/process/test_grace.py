"""The grace of a stop: SIGTERM reaches the group of the program, and all that is left of it has until SIGKILL."""

from pathlib import Path

import pytest

from contract.runtimes.runtime_labs import Driver
from trainyard_protocol.states import Reason, ReplicaState
from unit.agent.shells import RUN, TASK, start

LONG_S = 600.0

SAVES = """python3 -c '
import os, signal, sys, time
def save(*_):
    print("saving", flush=True)
    while not os.path.exists("{go}"):
        time.sleep(0.01)
    open("model", "w").write("weights")
    print("saved", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.01)
'"""
"""A program that has saved once the file `go` is there."""

IGNORES = """sh -c 'trap "" TERM; echo ready; while :; do sleep 0.1; done'"""


def test_what_a_shell_has_started_has_the_grace_though_the_shell_has_died(driver: Driver, tmp_path: Path) -> None:
    """The shell dies of SIGTERM in each; it is the replica's program, and ends it once all has ended."""
    scripts = {
        "a child": "{program}; echo never",
        "a pipe": "{program} 2>&1 | sh -c 'trap \"\" TERM; exec cat'",
        "a shell in a shell": 'sh -c "{program}; exit 0"; exit 0',
        "in the background": "{program} & wait",
        "another group that is signalled": 'setsid {program} & trap "kill -TERM $!; exit 7" TERM; wait',
    }
    wrong = {}
    for name, script in scripts.items():
        go = tmp_path / name.replace(" ", "-")
        program = SAVES.format(go=go)
        if '"{program}' in script:
            program = program.replace('"', '\\"')
        start(driver, script.replace("{program}", program))
        driver.until(lambda: "ready" in driver.texts(RUN, TASK))
        driver.runtime.stop(RUN, LONG_S)
        driver.until(lambda: "saving" in driver.texts(RUN, TASK))
        before = driver.reports(RUN)[TASK]
        has_ended = driver.runtime.has_ended(RUN)
        go.touch()
        ended = driver.end(RUN, TASK)
        driver.wait_for_log(RUN, TASK)
        model = (tmp_path / "state" / "runs" / RUN / TASK / "work" / "model").read_text()
        code = 7 if "exit 7" in script else 143
        seen = (before.state, before.exit, has_ended, ended.code, ended.reason, "saved" in driver.texts(RUN, TASK))
        if seen != (ReplicaState.RUNNING, None, False, code, Reason.STOPPED, True) or model != "weights":
            wrong[name] = seen
        driver.runtime.remove(RUN)
    assert not wrong


def _stopped(driver: Driver, script: str, *graces_s: float) -> tuple[int | None, list[str]]:
    """Start a program until it is ready, stop it so often; its exit code and its lines."""
    start(driver, script)
    driver.until(lambda: "ready" in driver.texts(RUN, TASK))
    for grace_s in graces_s:
        driver.runtime.stop(RUN, grace_s)
    ended = driver.end(RUN, TASK)
    assert ended.reason is Reason.STOPPED
    return ended.code, driver.wait_for_log(RUN, TASK)


@pytest.mark.parametrize("graces_s", [(0.3,), (LONG_S, 0.1)])
def test_what_goes_on_after_the_grace_is_killed_and_named(driver: Driver, graces_s: tuple[float, ...]) -> None:
    """A second stop cuts the grace."""
    code, lines = _stopped(driver, IGNORES, *graces_s)
    (message,) = [line for line in lines if "trainyard" in line]
    assert code == 143
    assert message.startswith("WARNING: trainyard: not ended ")
    assert "s after SIGTERM, and killed: sh (pid " in message


def test_program_that_has_ended_in_the_grace_leaves_no_word_of_it(driver: Driver) -> None:
    assert _stopped(driver, "echo ready; exec sleep 1000", LONG_S) == (143, ["ready"])


def test_what_a_program_leaves_that_ends_by_itself_is_killed_at_once(driver: Driver) -> None:
    start(driver, f"{IGNORES} & sleep 0.2; exit 5")

    ended = driver.end(RUN, TASK)

    assert (ended.code, ended.after_stop) == (5, False)
    assert not any("trainyard" in line for line in driver.wait_for_log(RUN, TASK))
