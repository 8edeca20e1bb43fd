"""Parameters and metrics of jobs to find them by, notes, and saved views."""

from itertools import islice

import sqlalchemy as sa
from alembic import op

from trainyard_protocol.job.parameters import number_of, parameters_of

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_JOBS_AT_ONCE = 1000


def upgrade() -> None:
    parameters = op.create_table(
        "job_parameters",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("number", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_job_parameters_job_key"),
        sa.PrimaryKeyConstraint("job_key", "name", name="pk_job_parameters"),
    )
    op.create_index("ix_job_parameters_by_number", "job_parameters", ["name", "number", "job_key"])
    op.create_index("ix_job_parameters_by_value", "job_parameters", ["name", "value", "job_key"])
    op.create_table(
        "job_metrics",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.Double(), nullable=True),
        sa.Column("best", sa.Double(), nullable=True),
        sa.Column("lowest", sa.Double(), nullable=True),
        sa.Column("highest", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_job_metrics_job_key"),
        sa.PrimaryKeyConstraint("job_key", "name", name="pk_job_metrics"),
    )
    op.create_index("ix_job_metrics_by_last", "job_metrics", ["name", "last", "job_key"])
    op.create_index("ix_job_metrics_by_best", "job_metrics", ["name", "best", "job_key"])
    op.create_table(
        "saved_views",
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("saved_by", sa.String(length=128), nullable=False),
        sa.Column("saved_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name="pk_saved_views"),
    )
    op.add_column("jobs", sa.Column("note", sa.Text(), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("measured", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index("ix_jobs_measured_ended_at", "jobs", ["measured", "ended_at"])
    _read_arguments(parameters)


def _read_arguments(parameters: sa.Table) -> None:
    """Add the parameters of the jobs that there are."""
    jobs = sa.table("jobs", sa.column("key", sa.Integer()), sa.column("training_input", sa.JSON()))
    rows = iter(op.get_bind().execute(sa.select(jobs.c.key, jobs.c.training_input)).all())
    while group := list(islice(rows, _JOBS_AT_ONCE)):
        values = [
            {"job_key": key, "name": name, "value": value.replace("\0", "\ufffd"), "number": number_of(value)}
            for key, training_input in group
            for name, value in parameters_of(training_input.get("args") or ()).items()
        ]
        if values:
            op.bulk_insert(parameters, values)
