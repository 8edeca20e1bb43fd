"""The first schema: jobs, runs, replicas, events, agents."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("agent_id", sa.String(length=128), nullable=False),
        sa.Column("info", sa.JSON(), nullable=False),
        sa.Column("first_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("agent_id", name=op.f("pk_agents")),
    )
    op.create_table(
        "jobs",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("job_id", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("training_input", sa.JSON(), nullable=False),
        sa.Column("gang", sa.JSON(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=False),
        sa.Column("stop_message", sa.Text(), nullable=False),
        sa.Column("retries_used", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("waiting", sa.Text(), nullable=False),
        sa.Column("waiting_kind", sa.String(length=32), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_jobs")),
        sa.UniqueConstraint("project", "job_id", name=op.f("uq_jobs_project_job_id")),
    )
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)
    op.create_table(
        "events",
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("run", sa.Integer(), nullable=True),
        sa.Column("task", sa.String(length=64), nullable=False),
        sa.Column("before", sa.String(length=32), nullable=False),
        sa.Column("after", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name=op.f("fk_events_job_key")),
        sa.PrimaryKeyConstraint("job_key", "number", name=op.f("pk_events")),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("job_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("agent_id", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("acknowledged", sa.Boolean(), nullable=False),
        sa.Column("activity", sa.Text(), nullable=False),
        sa.Column("verdict", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.agent_id"], name=op.f("fk_runs_agent_id")),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name=op.f("fk_runs_job_key")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_runs")),
        sa.UniqueConstraint("job_key", "number", name=op.f("uq_runs_job_key_number")),
    )
    op.create_index(op.f("ix_runs_agent_id_state"), "runs", ["agent_id", "state"], unique=False)
    op.create_table(
        "replicas",
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("task", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("machine_type", sa.String(length=64), nullable=False),
        sa.Column("cpus", sa.JSON(), nullable=False),
        sa.Column("gpus", sa.JSON(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("after_stop", sa.Boolean(), nullable=False),
        sa.Column("log_complete", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_replicas_run_id")),
        sa.PrimaryKeyConstraint("run_id", "task", name=op.f("pk_replicas")),
    )
