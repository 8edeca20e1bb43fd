"""Causes of failed pulls, by the words of Docker, containerd, the kubelet, Apptainer and registries. Pure.

What is refused fails at once. All else may pass, and is waited for. The nodes of Slurm import it, so it needs the
standard library alone.
"""

import re
from enum import Enum


class PullCause(str, Enum):  # noqa: UP042 - as Reason, whose names are the values
    """A cause. Its value is the reason (`states.Reason`) of a run that ends by it."""

    AWAY = "GIVEN_BACK"
    REFUSED = "IMAGE_FAILED"
    NO_ROOM = "HOST_FAILED"


_PASSING = (408, 425)
_TOO_MANY = 429
_REFUSING = (501, 505)
_STATUS = re.compile(
    r"\b(?:HTTP|status|status ?code|StatusCode|registry)\b[^;,]{0,60}?(?<![\w.:])([45]\d\d)\b"
    r"|(?<![\w.:])([45]\d\d) [A-Z][a-z]+"
)
_NAMES = re.compile(r"\S*/\S*")
"""URLs and references, whose words say nothing of what happened."""

_DIAL = re.compile(r"dial (?:tcp|udp|unix)|\blookup \S+|no such host|content digest", re.IGNORECASE)
_RATE = re.compile(r"toomanyrequests|too many requests|rate limit", re.IGNORECASE)
_ROOM = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_REFUSALS = tuple(
    (re.compile(pattern, re.IGNORECASE), meaning)
    for pattern, meaning in (
        (r"x509|certificate", "the certificate of its registry is not trusted"),
        (
            r"http response to https client|does not look like a tls handshake",
            "its registry has no TLS, which the engine asks for",
        ),
        (
            r"no matching manifest|no match for platform|match the specified platform"
            r"|no image found in .*(?:index|list)",
            "it has no image for the platform of this machine",
        ),
        (
            r"invalid reference|invalid tag|invalid image ?name|must be lowercase|(?:could not|couldn't|cannot) parse",
            "its name is invalid",
        ),
        (r"repository does not exist or may require", "image not found, or not visible without `{login}`"),
        (
            r"unauthorized|authentication required|no basic auth credentials|insufficient_scope|authorization failed"
            r"|\bdenied\b|forbidden|status:? 40[13]",
            "unauthorized: the registry does not let this agent pull it; run `{login}` on its machine as the agent's "
            "user",
        ),
        (r"not found|manifest unknown|name unknown|not known|no such image|does not exist", "image not found"),
        (r"unsupported|not supported|ErrImageNeverPull|signature", "it cannot be used"),
    )
)


def cause(words: str) -> PullCause:
    """The cause of a failure that was reported with these words."""
    return _cause_and_meaning(words)[0]


def verdict(name: str, words: str, login: str, disk: str) -> tuple[PullCause, str]:
    """The cause and a sentence on it. `login` is the command by which an agent's user gets to a registry, `disk` the
    place of images."""
    found, meaning = _cause_and_meaning(words)
    return found, f"{name}: {meaning.format(login=login, disk=disk)} ({words.strip().rstrip('.')})."


def _cause_and_meaning(words: str) -> tuple[PullCause, str]:
    plain = _NAMES.sub("", words)
    status = max(_statuses(words), default=0)
    if _ROOM.search(words):
        return PullCause.NO_ROOM, "{disk} is full"
    if _RATE.search(plain) or status == _TOO_MANY:
        return PullCause.AWAY, "the registry's rate limit is reached"
    if _DIAL.search(words):
        return PullCause.AWAY, "registry unreachable"
    if status in _PASSING or (status >= 500 and status not in _REFUSING):
        return PullCause.AWAY, "the registry fails"
    for pattern, meaning in _REFUSALS:
        if pattern.search(plain):
            return PullCause.REFUSED, meaning
    if status:
        return PullCause.REFUSED, "the registry refuses it"
    return PullCause.AWAY, "registry unreachable" if _UNREACHABLE.search(words) else "it could not be pulled"


_UNREACHABLE = re.compile(
    r"connection refused|time-?d? ?out|deadline exceeded|request canceled|handshake|\beof\b|connection reset"
    r"|broken pipe|network is unreachable|no route to host|server misbehaving",
    re.IGNORECASE,
)


def _statuses(words: str) -> list[int]:
    """The statuses of HTTP in the words, which are no ports, tags or numbers of other things."""
    return [int(first or second) for first, second in _STATUS.findall(words)]
