"""Rules of secrets: their names and values. Pure. No error repeats a value."""

from trainyard_protocol.answers.secrets import MAX_VALUE_BYTES, MIN_VALUE
from trainyard_protocol.errors import InvalidArgument, Violation, quoted
from trainyard_protocol.job.keys.secrets import NAME_RULE, is_secret_name


def check_name(name: str) -> None:
    """Raises InvalidArgument."""
    if not is_secret_name(name):
        raise InvalidArgument(Violation("name", f"{quoted(name)} is not a secret's name: {NAME_RULE}."))


def check_value(value: str) -> None:
    """Raises InvalidArgument for a value that no job could be given, or that could not be masked in its log."""
    size = len(value.encode())
    if size > MAX_VALUE_BYTES:
        problem = f"has {size:,} bytes; {MAX_VALUE_BYTES:,} are allowed."
    elif "\0" in value:
        problem = "has a NUL character, which no variable can hold: store binary content as base64."
    elif len(value.strip()) < MIN_VALUE:
        problem = f"is shorter than {MIN_VALUE} characters, too short to be masked in logs."
    else:
        return
    raise InvalidArgument(Violation("value", problem))
