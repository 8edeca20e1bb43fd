"""The schema of the database: made as the models are, or refused. A job that runs meanwhile goes on."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from beds import databases
from integration.api import api_support
from integration.api.api_support import ADMIN, Clock, ScriptedAgent, server
from integration.databases import older_state
from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.wire.agents import AGENT_KEY
from trainyard_server.storage.db.base import engine as database
from trainyard_server.storage.db.base.models import Table


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
        ("0019", "schema 0019, of a version before the first release; .* with an empty database"),
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


def test_notifications_that_wait_have_their_receivers_under_the_newest_schema(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'trainyard.db'}"
    engine, config = sa.create_engine(url), database.migrations()
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0033")
        connection.execute(
            sa.text(
                "INSERT INTO notifications (id, project, job_id, event, channel, transport, address, content,"
                " created_at, state, attempts, next_at, error)"
                " VALUES ('', 'p', '', 'end', '', 'json', :address, '{}', '', :state, 0, '', '')"
            ),
            [
                {"address": "https://chat.example.com/1", "state": "pending"},
                {"address": "ana@example.com", "state": "pending"},
                {"address": "http://old.example.com/", "state": "delivered"},
            ],
        )
        connection.commit()
    engine.dispose()
    engine = database.opened(url, durable=False)
    with engine.connect() as connection:
        receivers = connection.scalars(sa.text("SELECT receiver FROM notifications ORDER BY key")).all()
    engine.dispose()
    assert receivers == ["chat.example.com:443", "example.com", ""]


def test_job_that_runs_under_a_released_schema_goes_on_under_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(api_support.AGENT, AGENT_KEY, older_state.AGENT_KEY)
    data_dir = older_state.unpack(tmp_path) / "server"
    with server(data_dir, Clock()) as api:
        agent = ScriptedAgent(api)
        agent.info = agent.info.model_copy(update={"agent_id": older_state.AGENT_ID})
        agent.sync()
        agent.start()
        assert agent.run.run_id == older_state.RUN_OF_LONG
        agent.log("a line")
        agent.exit()
        job = api.client.get("/v1/projects/local/jobs/long", headers=ADMIN).json()
        assert job["state"] == "SUCCEEDED"
        api.create("new")
