"""The first schema."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = None
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_NO_TRIAL = sa.text("study_key IS NULL")
_LOG_REMOVED = sa.text("log_removed_at IS NOT NULL")
_LISTS = {
    "created": ["created_at", "key", "state", "name"],
    "end": ["ended_at", "created_at", "key", "state"],
    "name": ["name", "created_at", "key", "state"],
    "owner": ["owner", "created_at", "key", "state", "name"],
    "project": ["project", "created_at", "key", "state", "name"],
    "project_and_key": ["project", "key", "state", "job_id", "created_at"],
    "project_and_owner": ["project", "owner"],
    "project_and_state": ["project", "state", "key"],
    "start": ["started_at", "created_at", "key", "state"],
    "state": ["state", "created_at", "key", "name"],
    "state_and_end": ["state", "ended_at", "key"],
}
"""Columns of the indexes of lists of jobs. Lists have no trials."""


def upgrade() -> None:
    _create_agents()
    _create_jobs()
    _create_runs()
    _create_studies()
    _create_people()
    _create_service()
    _create_revisions()
    _create_parameters()
    _create_tracking()
    _create_notifications()


def _required(name: str, kind: Any, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **options)


def _optional(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True)


def _create_agents() -> None:
    op.create_table(
        "agents",
        _required("agent_id", sa.String(length=128)),
        _required("info", sa.JSON()),
        _required("key_sha256", sa.String(length=64), server_default=""),
        _required("first_seen", _TIME),
        _required("last_seen", _TIME),
        _optional("lease_s", sa.Double()),
        _required("heard", sa.Integer(), server_default="0"),
        _required("sent_version", sa.String(length=32), server_default=""),
        _optional("sent_lease_s", sa.Double()),
        _required("leftovers", sa.JSON(), server_default="[]"),
        _required("draining", sa.Boolean(), server_default="0"),
        _optional("removed_at", _TIME),
        _required("changed", sa.BigInteger(), server_default="0"),
        _required("failures", sa.JSON(), server_default="[]"),
        _required("drain_reason", sa.Text(), server_default=""),
        _required("sent_members", sa.JSON(), server_default="[]"),
        _required("member_lists", sa.JSON(), server_default="[]"),
        _required("given_name", sa.Text(), server_default=""),
        _required("restored", sa.Boolean(), server_default="0"),
        sa.PrimaryKeyConstraint("agent_id", name="pk_agents"),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        _required("key", sa.Integer()),
        _required("project", sa.String(length=128)),
        _required("job_id", sa.String(length=128)),
        _required("name", sa.String(length=128), server_default=""),
        _required("owner", sa.String(length=128), server_default=""),
        _optional("study_key", sa.Integer()),
        _required("state", sa.String(length=32)),
        _required("training_input", sa.JSON()),
        _required("gang", sa.JSON()),
        _required("priority", sa.Integer()),
        _required("labels", sa.JSON()),
        _required("revision", sa.Integer()),
        _required("created_at", _TIME),
        _required("queued_at", _TIME),
        _optional("started_at", _TIME),
        _optional("ended_at", _TIME),
        _required("error_message", sa.Text()),
        _required("stop_message", sa.Text()),
        _required("retries_used", sa.Integer()),
        _optional("not_before", _TIME),
        _required("waiting", sa.Text()),
        _required("waiting_kind", sa.String(length=32)),
        _required("position", sa.Integer()),
        _optional("verdict", sa.JSON(none_as_null=True)),
        _optional("log_removed_at", _TIME),
        _required("changed", sa.BigInteger(), server_default="0"),
        _required("note", sa.Text(), server_default=""),
        _required("measured", sa.Boolean(), server_default=sa.false()),
        _optional("run_limit_s", sa.Double()),
        sa.PrimaryKeyConstraint("key", name="pk_jobs"),
        sa.UniqueConstraint("project", "job_id", name="uq_jobs_project_job_id"),
    )
    op.create_index(
        "ix_jobs_by_removed_log",
        "jobs",
        ["log_removed_at", "project"],
        sqlite_where=_LOG_REMOVED,
        postgresql_where=_LOG_REMOVED,
    )
    op.create_index("ix_jobs_changed", "jobs", ["changed"])
    op.create_index("ix_jobs_measured_ended_at", "jobs", ["measured", "ended_at"])
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_table(
        "job_labels",
        _required("job_key", sa.Integer()),
        _required("name", sa.String(length=63)),
        _required("value", sa.String(length=63)),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_job_labels_job_key"),
        sa.PrimaryKeyConstraint("job_key", "name", name="pk_job_labels"),
    )
    op.create_index("ix_job_labels_by_value", "job_labels", ["name", "value", "job_key"])
    op.create_table(
        "deleted_jobs",
        _required("key", sa.Integer(), autoincrement=False),
        _required("project", sa.String(length=128)),
        _required("job_id", sa.String(length=128)),
        _required("deleted_at", _TIME),
        _required("deleted_by", sa.String(length=128)),
        sa.PrimaryKeyConstraint("key", name="pk_deleted_jobs"),
        sa.UniqueConstraint("project", "job_id", name="uq_deleted_jobs_project_job_id"),
    )
    op.create_table(
        "events",
        _required("job_key", sa.Integer()),
        _required("number", sa.Integer()),
        _required("time", _TIME),
        _required("kind", sa.String(length=32)),
        _required("message", sa.Text()),
        _optional("run", sa.Integer()),
        _required("task", sa.String(length=64)),
        _required("before", sa.String(length=32)),
        _required("after", sa.String(length=32)),
        _required("actor", sa.String(length=128), server_default=""),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_events_job_key"),
        sa.PrimaryKeyConstraint("job_key", "number", name="pk_events"),
    )
    for name, columns in _LISTS.items():
        op.create_index(
            f"ix_jobs_by_{name}", "jobs", [*columns, "study_key"], sqlite_where=_NO_TRIAL, postgresql_where=_NO_TRIAL
        )


def _create_runs() -> None:
    op.create_table(
        "runs",
        _required("run_id", sa.String(length=32)),
        _required("job_key", sa.Integer()),
        _required("number", sa.Integer()),
        _optional("beside", sa.Integer()),
        _required("agent_id", sa.String(length=128)),
        _required("state", sa.String(length=32)),
        _required("created_at", _TIME),
        _optional("ended_at", _TIME),
        _required("acknowledged", sa.Boolean()),
        _required("activity", sa.Text()),
        _required("runtime", sa.String(length=32), server_default=""),
        _required("runtime_reason", sa.Text(), server_default=""),
        _optional("verdict", sa.JSON(none_as_null=True)),
        _optional("part_of", sa.String(length=32)),
        _required("agents", sa.Integer(), server_default="1"),
        _required("ready", sa.Boolean(), server_default=sa.false()),
        _required("has_resolved", sa.Boolean(), server_default=sa.false()),
        _required("resolved", sa.Text(), server_default=""),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.agent_id"], name="fk_runs_agent_id"),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_runs_job_key"),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
        sa.UniqueConstraint("job_key", "number", "agent_id", name="uq_runs_job_key_number_agent_id"),
    )
    op.create_index("ix_runs_agent_id_state", "runs", ["agent_id", "state"])
    op.create_index("ix_runs_ended_at", "runs", ["ended_at"])
    op.create_index("ix_runs_part_of", "runs", ["part_of"])
    op.create_index("ix_runs_state", "runs", ["state"])
    op.create_table(
        "replicas",
        _required("run_id", sa.String(length=32)),
        _required("task", sa.String(length=64)),
        _required("position", sa.Integer()),
        _required("state", sa.String(length=32)),
        _required("machine_type", sa.String(length=64)),
        _required("cpus", sa.JSON()),
        _required("gpus", sa.JSON()),
        _required("memory_bytes", sa.BigInteger()),
        _required("vcpus", sa.Integer(), server_default="0"),
        _required("accelerator_type", sa.String(length=64), server_default=""),
        _required("accelerator_count", sa.Integer(), server_default="0"),
        _required("address", sa.String(length=255)),
        _optional("started_at", _TIME),
        _optional("finished_at", _TIME),
        _optional("exit_code", sa.Integer()),
        _optional("reason", sa.String(length=32)),
        _required("message", sa.Text()),
        _required("after_stop", sa.Boolean()),
        _required("exit_order", sa.BigInteger(), server_default="0"),
        _required("log_complete", sa.Boolean()),
        _optional("log_lines", sa.Integer()),
        _required("log_sha256", sa.String(length=64), server_default=""),
        _optional("log_kept", sa.Integer()),
        _optional("first_step", sa.BigInteger()),
        _optional("step", sa.BigInteger()),
        _optional("steps", sa.BigInteger()),
        _optional("step_at", _TIME),
        _optional("durable_step", sa.BigInteger()),
        _optional("durable_at", _TIME),
        _optional("stall", sa.JSON(none_as_null=True)),
        _required("waits", sa.Text(), server_default=""),
        _required("stacks", sa.Text(), server_default=""),
        _optional("metrics", sa.JSON(none_as_null=True)),
        _required("exit_error_s", sa.Double(), server_default="0"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_replicas_run_id"),
        sa.PrimaryKeyConstraint("run_id", "task", name="pk_replicas"),
    )
    op.create_table(
        "attachments",
        _required("attachment_id", sa.String(length=32)),
        _required("agent_id", sa.String(length=128)),
        _required("run_id", sa.String(length=32)),
        _required("task", sa.String(length=64)),
        _required("request", sa.JSON()),
        _required("caller", sa.String(length=128)),
        _required("server_url", sa.String(length=255)),
        _required("alive_until", _TIME),
        _required("joined", sa.Boolean(), server_default=sa.false()),
        sa.PrimaryKeyConstraint("attachment_id", name="pk_attachments"),
    )
    op.create_index("ix_attachments_agent_id", "attachments", ["agent_id"])


def _create_studies() -> None:
    op.create_table(
        "studies",
        _required("job_key", sa.Integer()),
        _required("seed", sa.Integer()),
        _required("failure", sa.Text()),
        _required("exhausted", sa.Boolean()),
        _required("past", sa.JSON()),
        _required("metric", sa.Text(), server_default=""),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_studies_job_key"),
        sa.PrimaryKeyConstraint("job_key", name="pk_studies"),
    )
    op.create_table(
        "trials",
        _required("study_key", sa.Integer()),
        _required("number", sa.Integer()),
        _required("job_key", sa.Integer()),
        _required("parameters", sa.JSON()),
        _required("logged", sa.String(length=32)),
        _required("stopped_early", sa.Boolean()),
        _required("from_file", sa.Boolean()),
        _optional("others", sa.JSON()),
        _optional("step", sa.BigInteger()),
        _optional("value", sa.Double()),
        _required("measurements", sa.JSON()),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_trials_job_key"),
        sa.ForeignKeyConstraint(["study_key"], ["jobs.key"], name="fk_trials_study_key"),
        sa.PrimaryKeyConstraint("study_key", "number", name="pk_trials"),
        sa.UniqueConstraint("job_key", name="uq_trials_job_key"),
    )


def _create_people() -> None:
    op.create_table(
        "tokens",
        _required("token_id", sa.String(length=32)),
        _required("digest", sa.String(length=64)),
        _required("owner", sa.String(length=128)),
        _required("for_agent", sa.Boolean()),
        _required("description", sa.String(length=256)),
        _required("created_at", _TIME),
        _required("created_by", sa.String(length=128)),
        _optional("expires_at", _TIME),
        _optional("last_used_at", _TIME),
        _optional("revoked_at", _TIME),
        _required("revoked_by", sa.String(length=128)),
        _required("made_with", sa.String(length=32), server_default=""),
        sa.PrimaryKeyConstraint("token_id", name="pk_tokens"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
    )
    op.create_index("ix_tokens_owner_created_at", "tokens", ["owner", "created_at"])
    op.create_index("ix_tokens_made_with", "tokens", ["made_with"])
    op.create_table(
        "members",
        _required("project", sa.String(length=128)),
        _required("name", sa.String(length=128)),
        _required("role", sa.String(length=32)),
        _required("since", _TIME),
        _required("given_by", sa.String(length=128)),
        sa.PrimaryKeyConstraint("project", "name", name="pk_members"),
    )
    op.create_index("ix_members_name", "members", ["name"])
    op.create_table(
        "spent",
        _required("digest", sa.String(length=64)),
        _required("until", _TIME),
        sa.PrimaryKeyConstraint("digest", name="pk_spent"),
    )
    op.create_table(
        "secrets",
        _required("project", sa.String(length=128)),
        _required("name", sa.String(length=64)),
        _required("ciphertext", sa.Text()),
        _required("set_by", sa.String(length=128)),
        _required("set_at", _TIME),
        _optional("last_used_at", _TIME),
        _required("last_used_by", sa.String(length=128)),
        sa.PrimaryKeyConstraint("project", "name", name="pk_secrets"),
    )
    op.create_table(
        "audit",
        _required("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite")),
        _required("time", _TIME),
        _required("actor", sa.String(length=128)),
        _required("credential", sa.String(length=64)),
        _required("role", sa.String(length=32)),
        _required("action", sa.String(length=128)),
        _required("project", sa.String(length=128)),
        _required("subject", sa.String(length=256)),
        _required("outcome", sa.String(length=16)),
        _required("status", sa.Integer()),
        _required("address", sa.String(length=64)),
        _required("user_agent", sa.String(length=200)),
        _required("request_id", sa.String(length=64)),
        _required("count", sa.Integer()),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_action_id", "audit", ["action", "id"])
    op.create_index("ix_audit_actor_id", "audit", ["actor", "id"])
    op.create_index("ix_audit_project_id", "audit", ["project", "id"])
    op.create_index("ix_audit_time", "audit", ["time"])


def _create_service() -> None:
    op.create_table(
        "installation",
        _required("installation_id", sa.String(length=32)),
        sa.PrimaryKeyConstraint("installation_id", name="pk_installation"),
    )
    op.create_table(
        "leases",
        _required("name", sa.String(length=32)),
        _required("holder", sa.String(length=64)),
        _required("beat", sa.Integer()),
        _required("ttl_s", sa.Double()),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "buckets",
        _required("name", sa.String(length=222)),
        _required("project", sa.String(length=128)),
        _required("made_by", sa.String(length=128)),
        _required("made_at", _TIME),
        sa.PrimaryKeyConstraint("name", name="pk_buckets"),
    )
    op.create_index("ix_buckets_project", "buckets", ["project", "name"])
    op.create_table(
        "usage_records",
        _required("run_id", sa.String(length=32)),
        _required("project", sa.String(length=128)),
        _required("owner", sa.String(length=128)),
        _required("job_id", sa.String(length=128)),
        _required("labels", sa.JSON()),
        _required("day", sa.String(length=10)),
        _required("ended_at", _TIME),
        _required("cpu_s", sa.Double()),
        _required("gpu_s", sa.Double()),
        _optional("idle_gpu_s", sa.Double()),
        _optional("wait_s", sa.Double()),
        _required("has_failed", sa.Boolean()),
        sa.PrimaryKeyConstraint("run_id", name="pk_usage_records"),
    )
    op.create_index("ix_usage_records_by_day", "usage_records", ["day", "project"])
    op.create_index("ix_usage_records_by_end", "usage_records", ["ended_at"])


def _create_revisions() -> None:
    revisions = op.create_table(
        "revisions",
        _required("id", sa.Integer()),
        _required("value", sa.BigInteger()),
        _required("placed", sa.BigInteger()),
        _required("noted", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_revisions"),
    )
    op.bulk_insert(revisions, [{"id": 1, "value": 1, "placed": 0, "noted": 0}])


def _create_parameters() -> None:
    op.create_table(
        "job_origins",
        _required("job_key", sa.Integer()),
        _required("summary", sa.JSON()),
        _required("content", sa.JSON()),
        _required("diff", sa.Text()),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_job_origins_job_key"),
        sa.PrimaryKeyConstraint("job_key", name="pk_job_origins"),
    )
    op.create_table(
        "job_parameters",
        _required("job_key", sa.Integer()),
        _required("name", sa.String(length=100)),
        _required("value", sa.Text()),
        _optional("number", sa.Double()),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_job_parameters_job_key"),
        sa.PrimaryKeyConstraint("job_key", "name", name="pk_job_parameters"),
    )
    op.create_index("ix_job_parameters_by_number", "job_parameters", ["name", "number", "job_key"])
    op.create_index("ix_job_parameters_by_value", "job_parameters", ["name", "value", "job_key"])
    op.create_table(
        "job_metrics",
        _required("job_key", sa.Integer()),
        _required("name", sa.String(length=100)),
        _required("step", sa.BigInteger()),
        _optional("last", sa.Double()),
        _optional("best", sa.Double()),
        _optional("lowest", sa.Double()),
        _optional("highest", sa.Double()),
        _required("source", sa.Integer(), server_default="1"),
        _required("time_ms", sa.BigInteger(), server_default="0"),
        _required("run", sa.Integer(), server_default="0"),
        _required("logged", sa.Integer(), server_default="0"),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_job_metrics_job_key"),
        sa.PrimaryKeyConstraint("job_key", "name", name="pk_job_metrics"),
    )
    op.create_index("ix_job_metrics_by_last", "job_metrics", ["name", "last", "job_key"])
    op.create_index("ix_job_metrics_by_best", "job_metrics", ["name", "best", "job_key"])
    op.create_table(
        "saved_views",
        _required("project", sa.String(length=128)),
        _required("name", sa.String(length=100)),
        _required("query", sa.Text()),
        _required("saved_by", sa.String(length=128)),
        _required("saved_at", _TIME),
        sa.PrimaryKeyConstraint("project", "name", name="pk_saved_views"),
    )


def _create_tracking() -> None:
    op.create_table(
        "logged_metrics",
        _required("job_key", sa.Integer()),
        _required("number", sa.Integer()),
        _required("run", sa.Integer()),
        _required("points", sa.JSON()),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_logged_metrics_job_key"),
        sa.PrimaryKeyConstraint("job_key", "number", name="pk_logged_metrics"),
    )
    op.create_table(
        "tracked_runs",
        _required("job_key", sa.Integer()),
        _required("number", sa.Integer()),
        _required("name", sa.String(length=100)),
        _required("status", sa.String(length=16)),
        _required("started_at", _TIME),
        _optional("ended_at", _TIME),
        _optional("deleted_at", _TIME),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_tracked_runs_job_key"),
        sa.PrimaryKeyConstraint("job_key", "number", name="pk_tracked_runs"),
    )
    op.create_table(
        "tracked_values",
        _required("job_key", sa.Integer()),
        _required("number", sa.Integer()),
        _required("kind", sa.String(length=16)),
        _required("name", sa.String(length=250)),
        _required("value", sa.Text()),
        _required("run", sa.Integer()),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_tracked_values_job_key"),
        sa.PrimaryKeyConstraint("job_key", "number", "kind", "name", name="pk_tracked_values"),
    )
    op.create_table(
        "logged_models",
        _required("job_key", sa.Integer()),
        _required("number", sa.Integer()),
        _required("source", sa.Integer()),
        _required("name", sa.Text()),
        _required("model_type", sa.Text()),
        _required("status", sa.String(length=32)),
        _required("created_at", _TIME),
        _required("updated_at", _TIME),
        _optional("deleted_at", _TIME),
        _required("tags", sa.JSON()),
        _required("params", sa.JSON()),
        _required("metrics", sa.JSON()),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_logged_models_job_key"),
        sa.PrimaryKeyConstraint("job_key", "number", name="pk_logged_models"),
    )


def _create_notifications() -> None:
    op.create_table(
        "notification_channels",
        _required("project", sa.String(length=128)),
        _required("name", sa.String(length=40)),
        _required("transport", sa.String(length=16)),
        _required("address", sa.Text()),
        _required("events", sa.JSON()),
        _required("created_by", sa.String(length=128)),
        _required("created_at", _TIME),
        sa.PrimaryKeyConstraint("project", "name", name="pk_notification_channels"),
    )
    op.create_table(
        "notices",
        _required("key", sa.Integer()),
        _required("job_key", sa.Integer()),
        _required("number", sa.Integer()),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_notices_job_key"),
        sa.PrimaryKeyConstraint("key", name="pk_notices"),
    )
    op.create_table(
        "metric_alerts",
        _required("job_key", sa.Integer()),
        _required("position", sa.Integer()),
        _required("metric", sa.String(length=100)),
        _required("operator", sa.String(length=2)),
        _required("bound", sa.Double()),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_metric_alerts_job_key"),
        sa.PrimaryKeyConstraint("job_key", "position", "metric", "operator", "bound", name="pk_metric_alerts"),
    )
    op.create_index("ix_metric_alerts_by_metric", "metric_alerts", ["metric", "job_key"])
    op.create_table(
        "notifications",
        _required("key", sa.Integer()),
        _required("id", sa.String(length=32)),
        _required("project", sa.String(length=128)),
        _required("job_id", sa.String(length=128)),
        _required("event", sa.String(length=200)),
        _required("channel", sa.String(length=40)),
        _required("transport", sa.String(length=16)),
        _required("address", sa.Text()),
        _required("content", sa.JSON()),
        _required("created_at", _TIME),
        _required("state", sa.String(length=16)),
        _required("attempts", sa.Integer()),
        _required("next_at", _TIME),
        _optional("delivered_at", _TIME),
        _required("error", sa.Text()),
        _required("receiver", sa.Text(), server_default=""),
        sa.PrimaryKeyConstraint("key", name="pk_notifications"),
    )
    op.create_index("ix_notifications_by_state", "notifications", ["state", "next_at"])
    op.create_index("ix_notifications_of_project", "notifications", ["project", "key"])
