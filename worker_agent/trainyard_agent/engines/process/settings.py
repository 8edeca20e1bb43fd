"""Settings of the process engine: it has none of its own."""

from dataclasses import dataclass
from typing import ClassVar

from trainyard_agent.settings import EngineSettings


@dataclass(frozen=True)
class ProcessSettings(EngineSettings):
    directories: ClassVar[tuple[str, ...]] = ("runs", "environments")


SETTINGS = ProcessSettings
