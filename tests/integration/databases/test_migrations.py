"""The schema of the database: made as the models are, or refused."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from beds import databases
from trainyard_protocol.errors import FailedPrecondition
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
