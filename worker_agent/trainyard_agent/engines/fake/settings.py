"""Settings of the fake engine, which tests register."""

from dataclasses import dataclass
from typing import ClassVar

from trainyard_agent.settings import EngineSettings, count
from trainyard_protocol.settings import setting


@dataclass(frozen=True)
class FakeSettings(EngineSettings):
    title: ClassVar[str] = "fake"
    spans_hosts: ClassVar[bool] = True

    fake_cpus: int = setting(4, "CPUs of the machine that is none", metavar="N", read=count)


SETTINGS = FakeSettings
