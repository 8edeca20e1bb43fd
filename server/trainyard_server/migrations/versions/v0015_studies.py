"""Studies and their trials. A trial is a job that no list shows, so the indexes of lists leave it out."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_LISTS = {
    "created": ["created_at", "key", "state", "name"],
    "project": ["project", "created_at", "key", "state", "name"],
    "project_and_owner": ["project", "owner"],
    "owner": ["owner", "created_at", "key", "state", "name"],
    "state": ["state", "created_at", "key", "name"],
    "name": ["name", "created_at", "key", "state"],
    "start": ["started_at", "created_at", "key", "state"],
    "state_and_end": ["state", "ended_at", "key"],
    "end": ["ended_at", "created_at", "key", "state"],
}
_NO_TRIAL = sa.text("study_key IS NULL")


def upgrade() -> None:
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("study_key", sa.Integer(), nullable=True))
    for name, columns in _LISTS.items():
        op.drop_index(f"ix_jobs_by_{name}", "jobs")
        op.create_index(
            f"ix_jobs_by_{name}",
            "jobs",
            [*columns, "study_key"],
            sqlite_where=_NO_TRIAL,
            postgresql_where=_NO_TRIAL,
        )
    op.create_table(
        "studies",
        sa.Column(
            "job_key", sa.Integer(), sa.ForeignKey("jobs.key", name="fk_studies_job_key"), nullable=False
        ),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.Column("exhausted", sa.Boolean(), nullable=False),
        sa.Column("past", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job_key", name="pk_studies"),
    )
    op.create_table(
        "trials",
        sa.Column(
            "study_key", sa.Integer(), sa.ForeignKey("jobs.key", name="fk_trials_study_key"), nullable=False
        ),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column(
            "job_key", sa.Integer(), sa.ForeignKey("jobs.key", name="fk_trials_job_key"), nullable=False
        ),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("logged", sa.String(length=32), nullable=False),
        sa.Column("stopped_early", sa.Boolean(), nullable=False),
        sa.Column("from_file", sa.Boolean(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("measurements", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("study_key", "number", name="pk_trials"),
        sa.UniqueConstraint("job_key", name="uq_trials_job_key"),
    )
