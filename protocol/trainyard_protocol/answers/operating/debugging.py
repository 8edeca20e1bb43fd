"""The state of a server for a debug bundle (`/trainyard/v1/debug`)."""

from trainyard_protocol.message import Wire


class DebugState(Wire):
    """`versions`: of Python and of packages. `settings`: by flag, without secrets. `log`: the last lines of the process
    that answered."""

    versions: dict[str, str]
    settings: dict[str, str]
    log: tuple[str, ...]
