"""Settings of the fake engine, which tests register."""

from typing import ClassVar

from trainyard_agent.settings import Count, EngineSettings, setting


class FakeSettings(EngineSettings):
    title: ClassVar[str] = "fake"
    spans_hosts: ClassVar[bool] = True

    fake_cpus: Count = setting(4, "CPUs of the machine that is none; default: %(default)s", "N")


SETTINGS = FakeSettings
