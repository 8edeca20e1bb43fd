"""From each released schema to the newest, on both databases, with a job under way.

A schema that was released never changes again: its migration's text is held by its digest.
"""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory

import trainyard_server.migrations.versions as versions
from beds import databases
from integration.api.api_support import Clock, ScriptedAgent, package_job, server
from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.wire.sync import ReplicaOrder, RunOrder
from trainyard_server.storage.db.base import engine as database

RELEASED = {"0001": "9cc2619f62e7d1e6157ef4b4724e750782bcc079a6a991cd4f49ba82ed409278"}
RUN = "0123456789abcdef0123456789abcdef"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def migrations() -> dict[str, Path]:
    (directory,) = versions.__path__
    return {path.name[1:5]: path for path in sorted(Path(directory).glob("v*.py"))}


@pytest.mark.parametrize("revision", RELEASED)
def test_released_migration_is_as_it_was_released(revision: str) -> None:
    text = migrations()[revision].read_bytes()
    assert hashlib.sha256(text).hexdigest() == RELEASED[revision], "add a new migration instead"


def test_migrations_are_one_line() -> None:
    script = ScriptDirectory.from_config(database.migrations())
    assert [revision.revision for revision in script.walk_revisions()][::-1] == list(migrations())
    assert script.get_current_head() == database.newest_schema()


@pytest.mark.parametrize("revision", RELEASED)
def test_job_that_runs_under_a_released_schema_goes_on_under_the_newest(
    revision: str, every_database: str, tmp_path: Path, postgresql: databases.PostgreSQL
) -> None:
    data_dir = tmp_path / "server"
    data_dir.mkdir()
    sqlite = every_database == "sqlite"
    url = f"sqlite:///{data_dir / 'trainyard.db'}" if sqlite else postgresql.create(migrated=False)
    _fill(url, revision)
    with server(data_dir, Clock(), database="" if sqlite else url) as api:
        agent = ScriptedAgent(api)
        detail = api.detail("running")
        (replica,) = detail["runs"][0]["replicas"]
        assert (detail["state"], replica["state"], replica["vcpus"]) == ("RUNNING", "RUNNING", 1)
        assert [event["message"] for event in detail["events"]] == ["Job running is queued."]
        assert api.job("over")["errorMessage"].startswith("It failed long ago.\n")
        agent.runs = {RUN: _order()}
        agent.sync()
        agent.start(agent.run)
        agent.log("a line")
        agent.exit()
        assert api.job("running")["state"] == "SUCCEEDED"
        api.create("new")
    if not sqlite:
        postgresql.drop(url)


def test_schema_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'trainyard.db'}"
    engine = database.opened(url, durable=False)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(FailedPrecondition, match="newer release has brought the database to schema 9999"):
        database.opened(url, durable=False)


def _order() -> RunOrder:
    replica = ReplicaOrder(task="master-replica-0", machine_type="local-1", cpus=(0,), memory_bytes=10**9)
    return RunOrder(
        run_id=RUN,
        number=1,
        target="run",
        project="p",
        job_id="running",
        training_input=package_job(),
        replicas=(replica,),
        grace_s=30,
    )


def _fill(url: str, revision: str) -> None:
    """A database as a server of that release left it: a job that runs, one that is over, their agent."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        config = database.migrations()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        tables = sa.MetaData()
        tables.reflect(connection)
        sqlite = engine.dialect.name == "sqlite"

        def insert(table: str, **values: Any) -> None:
            columns = tables.tables[table].columns
            row = {name: _stored(columns[name].type, value, sqlite) for name, value in values.items()}
            connection.execute(tables.tables[table].insert().values(row))

        agent = ScriptedAgent(None).info  # type: ignore[arg-type] # what it says of itself; it calls nobody
        insert(
            "agents",
            agent_id=agent.agent_id,
            info=agent.model_dump(mode="json"),
            first_seen=NOW,
            last_seen=NOW,
            lease_s=None,
        )
        for key, (job_id, state) in enumerate((("running", "RUNNING"), ("over", "FAILED")), 1):
            insert(
                "jobs",
                key=key,
                project="p",
                job_id=job_id,
                state=state,
                training_input=package_job(),
                gang=[],
                priority=0,
                labels={},
                revision=0,
                created_at=NOW,
                queued_at=NOW,
                started_at=NOW,
                ended_at=None if state == "RUNNING" else NOW,
                error_message="" if state == "RUNNING" else "It failed long ago.",
                stop_message="",
                retries_used=0,
                waiting="",
                waiting_kind="",
                position=0,
            )
        insert(
            "runs",
            run_id=RUN,
            job_key=1,
            number=1,
            agent_id=agent.agent_id,
            state="RUNNING",
            created_at=NOW,
            acknowledged=True,
            activity="",
        )
        insert(
            "replicas",
            run_id=RUN,
            task="master-replica-0",
            position=0,
            state="RUNNING",
            machine_type="local-1",
            cpus=[0],
            gpus=[],
            memory_bytes=10**9,
            address="127.0.0.1:2222",
            started_at=NOW,
            message="",
            after_stop=False,
            log_complete=False,
        )
        insert(
            "events",
            job_key=1,
            number=1,
            time=NOW,
            kind="queued",
            message="Job running is queued.",
            task="",
            before="",
            after="",
        )
        if not sqlite:  # the ids were given by hand
            connection.execute(sa.text("SELECT setval('jobs_key_seq', 2)"))
    engine.dispose()


def _stored(kind: Any, value: Any, sqlite: bool) -> Any:
    """SQLite tells a reflected column of JSON and of time from no other."""
    if sqlite and isinstance(value, dict | list) and not isinstance(kind, sa.JSON):
        return json.dumps(value)
    return value.replace(tzinfo=None) if sqlite and isinstance(value, datetime) else value
