"""Retention of the audit."""

from datetime import timedelta
from pathlib import Path

from integration.api.access.test_audit import _row, rows
from integration.api.api_support import Clock, server
from trainyard_protocol.answers.audit import AuditEntry
from trainyard_server.capabilities.retention.retention import Retention
from trainyard_server.storage.db.tables import audit


def test_old_rows_are_removed(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock, keep_audit_s=86400.0) as api:
        with api.use_cases.backend.store.write() as writer:
            entry = AuditEntry.model_validate(_row(clock() - timedelta(days=1, seconds=1)))
            for _ in range(501):
                audit.add(writer, entry)
        api.create()
        assert api.use_cases.of(Retention).step() is True
        assert api.use_cases.of(Retention).step() is False
        assert [row.action for row in rows(api)] == ["jobs.create"]
