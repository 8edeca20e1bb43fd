"""A server that is killed in the middle of an attack of each kind: it comes back, and nothing is lost.

One server and one agent with a job that prints numbered lines all the time. While several threads attack, the server is
killed and started again on the same directory; the attack goes on until it answers.
"""

import re
import time
from pathlib import Path

import pytest

from attacks.attackers import KINDS, attacking
from attacks.live_service import JOB, live_service

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.e2e]

ATTACK_S = 0.5
REACHED = {200, 400, 401, 403, 404}
"""Statuses of what the attacks are for. On a machine that does much besides, the rare ones come late."""

NUMBERED = re.compile(r" 1/master-replica-0 line (\d+)$")


def test_service_that_is_killed_under_each_attack_is_as_before_and_loses_nothing(tmp_path: Path) -> None:
    with live_service(tmp_path) as service:
        service.begin()
        (run,) = service.get(JOB)["runs"]
        before = service.files()
        answers: set[int] = set()
        for kind in KINDS:
            with attacking(service.port, run["run_id"], kind) as statuses:
                time.sleep(ATTACK_S)
                service.kill_server()
                service.start_server()
            answers |= statuses
        service.until(lambda: service.descriptors() < 40)
        memory = service.memory_mb()
        with attacking(service.port, run["run_id"], *KINDS, threads=1) as statuses:
            time.sleep(2 * ATTACK_S)
            service.until(lambda: REACHED.issubset(answers | statuses))
        service.until(lambda: service.descriptors() < 40)
        assert service.memory_mb() < memory + 200
        answers |= statuses
        assert not [status for status in answers if status >= 500]

        assert service.finish() == "SUCCEEDED"
        (ended,) = service.get(JOB)["runs"]
        assert ended["run_id"] == run["run_id"], "the same run went on"
        text = service.lines("admin", "job")
        numbers = [int(found[1]) for line in text if (found := NUMBERED.search(line))]
        assert numbers == list(range(1, len(numbers) + 1)), "each line once and in order"
        assert any(line.endswith(f"ended after {numbers[-1]}") for line in text)
        assert service.get("/healthz")["status"] == "ok"
        assert list((tmp_path / "tmp").iterdir()) == []
        assert service.files() - before <= {"stop", "data/staging/projects", "data/staging/projects/p"}
        log = service.programs.log_of("server")
        assert "Traceback" not in log, log[-5000:]
