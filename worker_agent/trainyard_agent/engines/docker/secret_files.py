"""Secrets of a run in containers: files on the host that are mounted, and the values that are masked in its logs.

Secrets are stored nowhere else: those that are variables are in the engine's description of the container, where an
agent that was restarted reads them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainyard_agent.runtimes.run_directories import secret_path
from trainyard_protocol.wire.sync import RunOrder

MODE = 0o444
# Any user of the container may read a file, as any user of it may read the variables of others there. On the host only
# root and the agent reach it, by the mode of the directories above.


def values(directory: Path, order: RunOrder, container: Mapping[str, Sequence[str] | None]) -> list[str]:
    """The values that a replica was given, from its files and from `Config` of its container's inspection. Raises
    OSError, so that no line of the log is copied without them."""
    variables = dict(pair.partition("=")[::2] for pair in container.get("Env") or ())
    return [
        secret_path(directory, secret.name, secret.file).read_text(encoding="utf-8")
        if secret.file
        else variables.get(secret.variable, "")
        for secret in order.training_input.secrets
    ]
