"""Reasons of failed pulls, by the words of registries. Pure."""

import re

from trainyard_protocol.states import Reason

_VERDICTS: tuple[tuple[str, Reason, str], ...] = (
    # The engine forwards the registries' messages, most of them with status 500: only the text differs.
    (
        r"repository does not exist or may require",
        Reason.IMAGE_FAILED,
        "image not found, or not visible without `{login}`",
    ),
    (
        r"unauthorized|authentication required|no basic auth credentials|denied: requested|access denied|forbidden",
        Reason.IMAGE_FAILED,
        "unauthorized: the registry does not let this agent pull it; run `{login}` on its machine as the agent's user",
    ),
    (
        r"not found|manifest unknown|name unknown|name not known|no such image|invalid reference format",
        Reason.IMAGE_FAILED,
        "image not found",
    ),
    (r"toomanyrequests|rate limit", Reason.STAGING_FAILED, "the registry's rate limit is reached"),
    (r"no space left on device", Reason.HOST_FAILED, "{disk} is full"),
    (
        r"dial tcp|no such host|connection refused|i/o timeout|timeout exceeded|request canceled"
        r"|deadline exceeded|tls|eof|connection reset|network is unreachable|server misbehaving|x509",
        Reason.STAGING_FAILED,
        "registry unreachable",
    ),
)


def verdict(name: str, error: str, login: str, disk: str) -> tuple[Reason, str]:
    """The reason and message for an error of an engine or a registry. `login` is the command by which an agent's user
    gets to a registry, `disk` the place of images."""
    for pattern, reason, meaning in _VERDICTS:
        if re.search(pattern, error, re.IGNORECASE):
            return reason, f"{name}: {meaning.format(login=login, disk=disk)} ({error.strip().rstrip('.')})."
    return Reason.STAGING_FAILED, f"{name}: it could not be pulled ({error.strip().rstrip('.')})."
