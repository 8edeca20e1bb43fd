"""The server on PostgreSQL: what SQLite promises, a real server of it promises too."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from trainyard_server.main import main
from trainyard_server.storage.db.base import engine, probes
from trainyard_server.storage.db.base.engine import UnusableUrl
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.failures import DatabaseError, failure_reason


def test_writers_of_two_stores_never_write_beside_each_other(database: str) -> None:
    stores = [Store(database), Store(database)]
    seen: list[int] = []

    def count(store: Store) -> None:
        for _ in range(25):
            with store.write() as writer:
                connection = writer._session.connection()
                connection.execute(text("CREATE TABLE IF NOT EXISTS counter (n integer)"))
                found = connection.execute(text("SELECT coalesce(max(n), 0) FROM counter")).scalar_one()
                connection.execute(text("INSERT INTO counter VALUES (:n)"), {"n": found + 1})
                seen.append(found + 1)

    threads = [threading.Thread(target=count, args=(store,)) for store in stores * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert sorted(seen) == list(range(1, 101))


def test_writer_that_does_not_go_on_holds_up_the_others_for_a_while_only(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_IDLE_MS", 500)
    frozen, other = Store(database), Store(database)

    def write() -> None:
        with frozen.write() as late:
            late.set_installation("frozen")
            with other.write() as writer:
                writer.set_installation("other")

    with pytest.raises(DatabaseError):
        write()
    with other.read() as reader:
        assert reader.installation() == "other"
    for store in (frozen, other):
        store.close()


def test_writer_that_waits_too_long_is_refused_and_the_probe_says_why(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = Store(database)
    monkeypatch.setattr(engine, "_BUSY_MS", 100)
    monkeypatch.setattr(probes, "PATIENCE_S", 0.2)
    other, probe = Store(database), probes.DatabaseProbe(make_url(database))
    assert probe.ask() > 0
    with holder.write():
        with pytest.raises(DatabaseError) as refused, other.write():
            pass
        with pytest.raises(DatabaseError) as found:
            probe.ask()
    for error in (refused.value, found.value):
        assert failure_reason(error) == "the database is locked by another process"
    for one in (holder, other, probe):
        one.close()


def test_two_servers_that_start_at_once_migrate_once(database: str) -> None:
    program = "import sys; from trainyard_server.storage.db.store import Store; Store(sys.argv[1]).close()"
    command = [sys.executable, "-c", program, database]
    servers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [server.communicate(timeout=60)[1] for server in servers] == ["", "", ""]
    assert [server.returncode for server in servers] == [0, 0, 0]


@pytest.mark.parametrize("url", ["mysql://x", "no url", "postgresql://u@h/d"])
def test_url_that_no_database_can_be_meant_by_is_refused(url: str) -> None:
    with pytest.raises(UnusableUrl, match="must look like postgresql\\+psycopg://"):
        Store(url)


def test_database_that_does_not_answer_is_one_line_without_its_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "postgresql+psycopg://user:secret@127.0.0.1:1/db"
    assert main(["--data-dir", str(tmp_path), "--port", "0", "--database", url]) == 1
    message = capsys.readouterr().err
    assert message.startswith("trainyard_server: cannot use the database: ")
    assert "refused" in message
    assert "secret" not in message
    assert "Traceback" not in message
