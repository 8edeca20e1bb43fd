"""What the use cases stand on, built once by the composition root."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from trainyard_protocol.machines import Catalog
from trainyard_server.config.settings import Settings
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.storage.agent_liveness import Hearing
from trainyard_server.storage.db.repository import Store
from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.storage.logs.store import LogStore
from trainyard_server.storage.progress import Steps
from trainyard_server.storage.uploads import Staging
from trainyard_server.storage.usage.store import UsageStore

Clock = Callable[[], datetime]
"""Answers with the present moment, aware of its zone."""


def system_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Backend:
    settings: Settings
    store: Store
    logs: LogStore
    steps: Steps
    usage: UsageStore
    staging: Staging
    notifier: Notifier
    catalog: Catalog
    quotas: Quotas
    clock: Clock
    hearing: Hearing
