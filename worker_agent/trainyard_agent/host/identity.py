"""Identity of an agent: its id, and the key that proves it.

That of a state directory is in one file, so that neither is lost or copied without the other.
"""

import logging
import secrets
import stat
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainyard_agent.host.files import read_json, write_json

_NAME = "agent.json"
_PRIVATE = 0o600
_KEY_BYTES = 32

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    agent_id: str
    key: str = field(repr=False)


def new_identity() -> Identity:
    return Identity(uuid.uuid4().hex, secrets.token_hex(_KEY_BYTES))


def identity(state_dir: Path) -> Identity:
    """The identity of this state directory's agent, made at its first use. Raises OSError."""
    path = state_dir / _NAME
    saved = read_json(path)
    if saved is None:
        saved = asdict(new_identity())
        write_json(path, saved, _PRIVATE)
    elif stat.S_IMODE(path.stat().st_mode) != _PRIVATE:
        path.chmod(_PRIVATE)
        logger.warning("%s has the agent's key, and was open to others: only its owner may read it now", path)
    return Identity(str(saved["agent_id"]), str(saved["key"]))
