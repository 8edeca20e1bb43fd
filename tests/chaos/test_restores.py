"""Histories with a restore: the jobs of the backup end, whatever their machines were doing, and nothing runs twice.

pytest tests/chaos/test_restores.py --chaos-histories 100
pytest tests/chaos/test_restores.py --chaos-seed 7              that one again
"""

import http.client
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import psutil
import pytest

from chaos import invariants, plan
from chaos.history import TOKENS, History, Outcome, Place, parts_in
from chaos.plan import PlannedJob
from chaos.service.artifacts import keep_on_failure
from chaos.service.replicas import processes_of
from trainyard_cli.capabilities.backups.archive import receive
from trainyard_cli.capabilities.backups.restoring import restore
from trainyard_protocol.states import JobState

pytestmark = [pytest.mark.long, pytest.mark.e2e]

LATE = PlannedJob("late", 0.0, 0, {"master": [["polite", 1, 0], ["sleep", 600]]}, endless=True)
"""The job that is submitted after the backup."""
_BLOCK = 1 << 16


class RestoredHistory(History):
    """A history whose server is replaced by what a backup has of it, at the same address."""

    def submit(self, job: PlannedJob) -> None:
        """Submit the job; nobody follows it, since the new server has fewer lines."""
        self.answers[job.name].submitted = self.person.submit(job.name, self.training_input(job))
        self._is_submitted[job.name].set()

    def do_restore(self, after_s: float, elsewhere: bool) -> None:
        """Some time after the backup the server is lost; its machines too, where `elsewhere`: then new agents come."""
        assert all(submitted.wait(self.patience_s) for submitted in self._is_submitted.values())
        archive = self.root / "backup.tar.gz"
        server, port = self.servers[0]
        while not archive.exists() and not self._ended.is_set():
            with suppress(OSError, http.client.HTTPException):  # it was killed
                receive(_backup(port), archive, lambda _: None)
        self.person.submit(LATE.name, self.training_input(LATE))
        self._ended.wait(after_s)
        with server.away(), ExitStack() as machines:
            if elsewhere:
                for agent in self.agents:
                    machines.enter_context(agent.away())
                self._lose_machines()
            restore(archive, self.root / "restored")
            server.use(self._server_arguments(self.root / "restored" / "server", port))

    def _lose_machines(self) -> None:
        while processes := processes_of(self.root):
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(processes, timeout=1)
        for number in range(self.plan.agents):
            shutil.rmtree(self.root / f"agent-{number}", ignore_errors=True)

    def parts(self) -> dict[str, str]:
        """Those of runs that the backup does not have too."""
        restored = self.root / "restored" / "server" / "trainyard.db"
        return super().parts() | (parts_in(f"sqlite:///{restored}") if restored.exists() else {})


def _backup(port: int) -> Iterator[bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        connection.request("POST", "/trainyard/v1/backups", headers={"Authorization": f"Bearer {TOKENS['admin']}"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        while block := answer.read(_BLOCK):
            yield block


def jobs_succeeded(outcome: Outcome) -> None:
    states = {name: (detail.state, detail.job.get("errorMessage")) for name, detail in outcome.details.items()}
    assert {state for state, _ in states.values()} == {JobState.SUCCEEDED}, states


INVARIANTS = (
    invariants.what_was_accepted_exists_once,
    invariants.every_job_has_ended_by_legal_moves,
    jobs_succeeded,
    invariants.only_failures_cost_a_retry,
    invariants.each_replica_lives_once_and_no_two_runs_at_once,
    invariants.nothing_is_left,
    invariants.nobody_stumbled,
)


def test_jobs_of_a_backup_end_and_nothing_runs_twice(
    restored: int, restored_place: Place, record_property: Callable[[str, object], None]
) -> None:
    record_property("combination", "restored")
    record_property("history", restored)
    drawn = plan.restored(restored)
    with keep_on_failure(drawn, f"restored-{restored}") as root:
        outcome = RestoredHistory(drawn, restored_place, root).play()
        record_property("effects", outcome.effects)
        invariants.check(outcome, INVARIANTS)
