"""File descriptors of this process: connections, logs and the database share one limit."""

import errno
import resource

_WANTED = 16_384


def raise_limit() -> None:
    """Raise the limit to what a server with thousands of readers needs, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def is_exhausted(error: BaseException | None) -> bool:
    """Whether the error is that this process, or the machine, has no descriptor left."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
