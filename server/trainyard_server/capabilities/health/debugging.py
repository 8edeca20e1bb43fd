"""The state of this process for a debug bundle: versions, settings and the last lines of its log."""

import platform
from collections.abc import Collection, Iterable
from importlib.metadata import distributions

from trainyard_protocol.answers.operating.debugging import DebugState
from trainyard_protocol.service_log import recent
from trainyard_protocol.settings import declared
from trainyard_server.config.settings import CapabilitySettings, Settings
from trainyard_server.context import Backend

_HIDDEN = "(set)"

_MASK = "***"

_MOST_LOG = 1_000_000
"""Characters of the last lines of the log."""


class Debugging:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def state(self) -> DebugState:
        """The state now. Secrets are left out: of tokens there are roles and names."""
        settings = self._backend.settings
        return DebugState(
            versions=_versions(),
            settings=_shown(settings) | {flag: text for own in settings.options for flag, text in _shown(own).items()},
            log=_masked(recent, [token.secret for token in settings.tokens]),
        )


def _masked(lines: Iterable[str], secrets: Collection[str]) -> tuple[str, ...]:
    """The last lines, without these secrets."""
    last: list[str] = []
    room = _MOST_LOG
    for line in reversed(list(lines)):
        room -= len(line)
        if room < 0:
            break
        for secret in secrets:
            line = line.replace(secret, _MASK)
        last.append(line)
    return tuple(reversed(last))


def _versions() -> dict[str, str]:
    packages = {item.metadata["Name"]: item.version for item in distributions() if item.metadata["Name"]}
    return {"python": platform.python_version(), "platform": platform.platform(), **dict(sorted(packages.items()))}


def _shown(settings: Settings | CapabilitySettings) -> dict[str, str]:
    """The settings that an operator gives, by flag."""
    shown = {}
    for entry in declared(type(settings)):
        value = getattr(settings, entry.field.name)
        if entry.field.name == "tokens":
            shown[entry.option.flag] = ", ".join(f"{token.role}:{token.name}" for token in value)
        elif not entry.field.repr:
            shown[entry.option.flag] = _HIDDEN if value else ""
        else:
            shown[entry.option.flag] = str(value)
    return shown
