"""Backup and restore that are killed at random moments, while jobs are submitted and objects replaced."""

import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from capabilities.backups import killed_program
from integration.api.api_support import Clock, Server, running_agent, server
from trainyard_cli.capabilities.backups.archive import unpack
from trainyard_protocol.answers.stored.backups import ExaminationView
from trainyard_server.capabilities.backups.options import BackupOptions
from trainyard_storage.api import StorageApi
from trainyard_storage.records import Conditions
from trainyard_storage.store import ObjectStore

KILLS = 5  # of each: 10 in all


class Children:
    """Children of one program, one after the other."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.took_s = 0.0

    def start(self, name: str, *arguments: object, kill_after: float = 0.0) -> None:
        assert self._process.stdin is not None
        print(name, kill_after, *arguments, file=self._process.stdin, flush=True)

    def end(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def run(self, name: str, *arguments: object) -> None:
        """One that is not killed."""
        began = time.monotonic()
        self.start(name, *arguments)
        assert self.end() == 0
        self.took_s = time.monotonic() - began

    def run_killed(self, dice: random.Random, name: str, *arguments: object, meanwhile: Callable[[], None]) -> bool:
        """One that is killed at a random moment, if it has not ended before. Whether it was killed."""
        delay = dice.uniform(0.001, 1.2 * self.took_s)
        self.start(name, *arguments, kill_after=delay)
        deadline = time.monotonic() + delay
        while time.monotonic() < deadline:
            meanwhile()
        code = self.end()
        assert code in (-signal.SIGALRM, 0)
        return code != 0


@contextmanager
def children() -> Iterator[Children]:
    command = [sys.executable, killed_program.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Children(process)
        finally:
            process.kill()


class Submitter:
    """Submits jobs one after the other, replaces an object, and notes when each was acknowledged."""

    def __init__(self, api: Server, storage: ObjectStore) -> None:
        self._api = api
        self._storage = storage
        self._acknowledged: list[tuple[str, datetime]] = []

    def submit(self) -> None:
        name = f"job_{len(self._acknowledged)}"
        self._api.create(name)
        with self._storage.drafting() as draft:
            draft.write(name.encode() * 1000)
            self._storage.put("bucket", "newest", draft, {}, Conditions())
        self._acknowledged.append((name, datetime.now(UTC)))

    def before(self, moment: datetime) -> set[str]:
        return {name for name, time in self._acknowledged if time < moment}


def test_killed_backups_and_restores_leave_nothing_or_everything(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    directory, target, gcs = tmp_path / "backups", tmp_path / "restored", tmp_path / "gcs"
    backup = ("backup", tmp_path / "server", gcs)
    directory.mkdir()
    service, killed = StorageApi(gcs), 0
    with children() as program, server(tmp_path / "server", Clock()) as api:
        agent = running_agent(api, "logged")
        agent.log(*(f"line {n} {dice.random()}" for n in range(10_000)))
        agent.exit()
        submitter = Submitter(api, service.store)
        submitter.submit()
        program.run(*backup, directory / "trainyard-first.tar.gz")
        for number in range(KILLS):
            archive = directory / f"trainyard-{number}.tar.gz"
            killed += program.run_killed(dice, *backup, archive, meanwhile=submitter.submit)
            if archive.exists():
                check(archive, tmp_path, submitter)
        newest = directory / "trainyard-newest.tar.gz"
        program.run(*backup, newest)
        assert list((tmp_path / "server/backups-begun").iterdir()) == []
        jobs = check(newest, tmp_path, submitter)
        program.run("restore", newest, tmp_path / "first")
        for number in range(KILLS):
            killed += program.run_killed(dice, "restore", newest, target, meanwhile=lambda: time.sleep(0.001))
            if target.exists():
                assert jobs_in(target / "server/trainyard.db") == jobs
                target.rename(tmp_path / f"restored-{number}")
        program.run("restore", newest, target)
    service.close()
    assert killed
    assert not (tmp_path / ".restored.restoring").exists()
    with server(target / "server", Clock(), options=(BackupOptions(storage_dir=target / "gcs"),)) as api:
        view = ExaminationView.model_validate(api.get("/trainyard/v1/examination"))
    assert [part.faults for part in view.examined if part.faults] == []
    assert {part.what: part.count for part in view.examined}["jobs"] == len(jobs)


def check(archive: Path, tmp_path: Path, submitter: Submitter) -> set[str]:
    """An archive that has its name is whole, and has all that was acknowledged before it began. Returns its jobs."""
    into = tmp_path / f"unpacked-{archive.name}"
    if not into.exists():
        manifest = unpack(archive, into)
        assert submitter.before(manifest.time) <= jobs_in(into / "server/trainyard.db")
    return jobs_in(into / "server/trainyard.db")


def jobs_in(database: Path) -> set[str]:
    with closing(sqlite3.connect(database)) as connection:
        return {name for (name,) in connection.execute("SELECT job_id FROM jobs")}
