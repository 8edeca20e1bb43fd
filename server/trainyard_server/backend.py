"""What the use cases stand on, built once by the composition root."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from trainyard_protocol.machines import Catalog
from trainyard_server.hearing import Hearing
from trainyard_server.logs import LogStore
from trainyard_server.notify import Notifier
from trainyard_server.quotas import Quotas
from trainyard_server.settings import Settings
from trainyard_server.staging import Staging
from trainyard_server.steps import Steps
from trainyard_server.store import Store
from trainyard_server.usage import UsageStore

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
