"""Files with tokens and secrets, which nobody else may use."""

import logging
from pathlib import Path

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.net.private_files import HOW_TO_MAKE_ONE, read_token_file
from trainyard_server.domain.access.permissions import NAME_RULE, Role, Token, is_name

_SHORTEST_TOKEN = 20

logger = logging.getLogger(__name__)


def read_token(text: str) -> Token:
    """The token of `ROLE[:NAME]=FILE`. Raises InvalidArgument."""
    who, separator, path = text.partition("=")
    role, named, name = who.partition(":")
    if not separator or role not in list(Role):
        roles = f"{', '.join(list(Role)[:-1])} or {list(Role)[-1]}"
        raise InvalidArgument(f"takes ROLE=FILE or ROLE:NAME=FILE, the role being {roles}; this is {text!r}.")
    name = name if named else role
    if not is_name(name):
        raise InvalidArgument(f"{text!r}: {name!r} is not a valid name: {NAME_RULE}.")
    try:
        token = read_secret(path)
    except InvalidArgument as error:
        raise InvalidArgument(f"{text}{error.message}") from error
    if len(token) < _SHORTEST_TOKEN:
        raise InvalidArgument(
            f"{text}: the token has {len(token)} characters, which can be guessed: it needs {_SHORTEST_TOKEN}. "
            f"Make one with {HOW_TO_MAKE_ONE}."
        )
    return Token(Role(role), name, token)


def read_secret(path: str) -> str:
    """The text of a file that nobody else can use. Raises InvalidArgument."""
    try:
        file = read_token_file(Path(path))
    except InvalidArgument as error:
        raise InvalidArgument(f": {error.message}") from error
    if file.exposure is not None and file.exposure.is_grave:
        raise InvalidArgument(f": {file.exposure.message}")
    if file.exposure is not None:
        logger.warning("%s: %s", path, file.exposure.message)
    return file.token
