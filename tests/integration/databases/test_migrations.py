"""The schema of the database: made as the models are, or refused. A job that runs meanwhile goes on."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from beds import databases
from integration.api.api_support import Clock, ScriptedAgent, server
from trainyard_protocol.errors import FailedPrecondition
from trainyard_server.storage.db.base import engine as database
from trainyard_server.storage.db.base.columns import Table


def test_migrations_are_one_line() -> None:
    script = ScriptDirectory.from_config(database.migrations())
    assert script.get_current_head() == database.newest_schema()


def test_migrated_schema_is_that_of_the_models(
    every_database: str, tmp_path: Path, postgresql: databases.PostgreSQL
) -> None:
    sqlite = every_database == "sqlite"
    url = f"sqlite:///{tmp_path / 'trainyard.db'}" if sqlite else postgresql.create(migrated=False)
    database.opened(url, durable=False).dispose()
    engine = database.opened(url, durable=False)  # again: nothing to do
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Table.metadata) == []
    engine.dispose()
    if not sqlite:
        postgresql.drop(url)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("9999", "newer release has brought the database to schema 9999"),
        (
            "0033",
            "schema 0033, of an older version, and this release reads schema 0034 or newer: start it with an empty",
        ),
    ],
)
def test_schema_that_no_migration_starts_from_is_refused(tmp_path: Path, schema: str, message: str) -> None:
    url = f"sqlite:///{tmp_path / 'trainyard.db'}"
    engine = database.opened(url, durable=False)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :schema"), {"schema": schema})
    engine.dispose()
    with pytest.raises(FailedPrecondition, match=message):
        database.opened(url, durable=False)


def test_job_that_runs_under_a_released_schema_goes_on_under_the_newest(tmp_path: Path) -> None:
    with server(tmp_path, Clock()) as api:
        api.create()
        agent = ScriptedAgent(api)
        api.tick()
        agent.sync()
        agent.start()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'trainyard.db'}")
    with engine.begin() as connection:
        for statement in (
            "ALTER TABLE revisions DROP COLUMN written",
            "DROP TABLE job_dependencies",
            "DROP TABLE preemption_requests",
            "ALTER TABLE replicas DROP COLUMN durable_every_s",
            "ALTER TABLE jobs ADD COLUMN log_removed_at DATETIME",
            "CREATE INDEX ix_jobs_by_removed_log ON jobs (log_removed_at, project) WHERE log_removed_at IS NOT NULL",
            "UPDATE alembic_version SET version_num = '0034'",
        ):
            connection.exec_driver_sql(statement)
    engine.dispose()
    with server(tmp_path, Clock()) as api:
        agent.server = api
        agent.log("a line")
        agent.exit()
        assert api.job()["state"] == "SUCCEEDED"
        with api.use_cases.backend.store.read() as reader:
            columns = sa.inspect(reader.session.connection()).get_columns("jobs")
        assert "log_removed_at" not in [column["name"] for column in columns]
