"""What people look for jobs by: their owner, their labels, their name; and what programs measure of themselves."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("owner", sa.String(length=128), nullable=False, server_default=""))
        jobs.add_column(sa.Column("name", sa.String(length=128), nullable=False, server_default=""))
    op.execute("UPDATE jobs SET name = lower(job_id)")
    with op.batch_alter_table("replicas") as replicas:
        replicas.add_column(sa.Column("metrics", sa.JSON(), nullable=True))
    # Each covers a list of jobs, so that the jobs themselves are read for one page alone.
    op.create_index("ix_jobs_by_created", "jobs", ["created_at", "key", "state", "name"])
    op.create_index("ix_jobs_by_project", "jobs", ["project", "created_at", "key", "state", "name"])
    op.create_index("ix_jobs_by_owner", "jobs", ["owner", "created_at", "key", "state", "name"])
    op.create_index("ix_jobs_by_state", "jobs", ["state", "created_at", "key", "name"])
    op.create_index("ix_jobs_by_name", "jobs", ["name", "created_at", "key", "state"])
    op.create_index("ix_jobs_by_start", "jobs", ["started_at", "created_at", "key", "state"])
    op.create_index("ix_jobs_by_state_and_end", "jobs", ["state", "ended_at", "key"])
    op.create_index("ix_jobs_by_end", "jobs", ["ended_at", "created_at", "key", "state"])
    op.create_table(
        "job_labels",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("value", sa.String(length=63), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name=op.f("fk_job_labels_job_key")),
        sa.PrimaryKeyConstraint("job_key", "name", name=op.f("pk_job_labels")),
    )
    op.create_index("ix_job_labels_by_value", "job_labels", ["name", "value", "job_key"])
    _copy_labels()
    op.create_table(
        "spent",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_spent")),
    )


def _copy_labels() -> None:
    connection = op.get_bind()
    jobs = sa.table("jobs", sa.column("key", sa.Integer), sa.column("labels", sa.JSON))
    labels = sa.table("job_labels", sa.column("job_key"), sa.column("name"), sa.column("value"))
    rows = [
        {"job_key": key, "name": name, "value": value}
        for key, said in connection.execute(sa.select(jobs.c.key, jobs.c.labels))
        for name, value in (said or {}).items()
    ]
    if rows:
        connection.execute(sa.insert(labels), rows)
