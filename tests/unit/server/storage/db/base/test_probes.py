"""Probes of the database."""

import os
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from trainyard_server.services.health.stopped import of_database
from trainyard_server.storage.db.base.probes import DatabaseProbe
from trainyard_server.storage.db.store import Store


@pytest.fixture
def database(tmp_path: Path) -> Path:
    Store.at(tmp_path, durable=False).close()
    return tmp_path / "trainyard.db"


def probe(path: Path) -> DatabaseProbe:
    return DatabaseProbe(make_url(f"sqlite:///{path}"))


def test_damage_is_found(database: Path) -> None:
    connection = sqlite3.connect(database)
    root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'ix_jobs_state'").fetchone()[0]
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with database.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(os.urandom(size))

    asked = probe(database)
    damaged = of_database(asked.facts())
    asked.close()

    assert damaged.status == "problem"
    assert damaged.found.startswith("SQLite finds its file damaged: ")
