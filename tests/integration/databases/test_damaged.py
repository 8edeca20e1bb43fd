"""Databases that cannot be used: what `trainyard doctor` finds while no server runs."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from integration.api.api_support import Clock, server, settings
from trainyard_server.main import main
from trainyard_server.services.health.stopped import database_finding
from trainyard_server.storage.db.base.engine import newest_schema

NOWHERE = "postgresql+psycopg://user:word@127.0.0.1:1/trainyard"


def garbage(file: Path) -> None:
    file.write_bytes(b"garbage " * 1000)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def scribbled(file: Path) -> None:
    """Pages in the middle have other bytes."""
    content = bytearray(file.read_bytes())
    half = len(content) // 2 // 4096 * 4096
    content[half : half + 3 * 4096] = b"\xff" * (3 * 4096)
    file.write_bytes(content)


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def unreadable(file: Path) -> None:
    """Not even root opens a link to itself."""
    file.unlink()
    file.symlink_to(file.name)


def newer(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")


def gone(file: Path) -> None:
    file.unlink()


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "garbage": (garbage, "the database is damaged (file is not a database)"),
    "truncated": (truncated, "malformed"),
    "scribbled": (scribbled, "SQLite finds its file damaged"),
    "emptied": (emptied, "cannot be used: It is empty"),
    "a directory": (a_directory, "the file of the database cannot be opened"),
    "unreadable": (unreadable, "the file of the database cannot be opened"),
    "newer": (newer, f"to schema 9999; this one supports up to {newest_schema()}"),
    "gone": (gone, "is gone, and logs of its jobs are there"),
}


def test_doctor_says_of_every_damaged_database_what_it_is_and_what_to_do(tmp_path: Path) -> None:
    wrong = {}
    for name, (damage, expected) in DAMAGES.items():
        directory = tmp_path / name
        with server(directory, Clock()) as api:
            api.create()
            api.tick()
        assert database_finding(settings(directory)).status == "ok"
        damage(directory / "trainyard.db")
        found = database_finding(settings(directory))
        if found.status != "problem" or expected not in found.found or not found.meaning:
            wrong[name] = found
    with server(tmp_path / "locked", Clock()):
        pass
    with closing(sqlite3.connect(tmp_path / "locked" / "trainyard.db")) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        found = database_finding(settings(tmp_path / "locked"))
        if (
            "the database is locked by another process" not in found.found
            or "End the program that holds it. Then" not in found.advice
        ):
            wrong["locked"] = found
    found = database_finding(settings(tmp_path / "locked", database=NOWHERE))
    if "The database: the database does not answer" not in found.found or "word" in found.found:
        wrong["unreachable"] = found
    assert wrong == {}
    assert database_finding(settings(tmp_path / "new")).status == "ok"


def test_database_that_stores_bytes_is_refused_with_the_command_that_makes_a_right_one(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = make_url(database)
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        encoding = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
        connection.execute(text(f"CREATE DATABASE of_bytes TEMPLATE template0 {encoding}"))
    admin.dispose()
    wrong = url.set(database="of_bytes").render_as_string(hide_password=False)
    (tmp_path / "token").write_text("a" * 40)
    (tmp_path / "token").chmod(0o600)
    words = ["--data-dir", str(tmp_path / "data"), "--token-file", f"admin={tmp_path / 'token'}", "--port", "0"]
    assert main([*words, "--database", wrong]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("trainyard_server: The database has the encoding SQL_ASCII, and Trainyard needs UTF8.")
    assert "createdb --encoding UTF8 --template template0 NAME" in printed
