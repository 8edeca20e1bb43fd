"""Rules of a job's own environment variables: names, values and their size. Pure."""

from collections.abc import Mapping

from trainyard_protocol.errors import quoted
from trainyard_protocol.fields import kind_of, validation_error
from trainyard_protocol.job.config.secret_rules import OWN_PREFIXES, OWN_VARIABLES, is_variable

MAX_VARIABLES = 100
"""Variables of one job."""

MAX_BYTES = 32_768
"""All names and values together: each is in TF_CONFIG too, and the kernel lets a variable have 128 KiB."""

_CLOSED_PREFIXES = (*OWN_PREFIXES, "STORAGE_EMULATOR_")
_OWN = OWN_VARIABLES - {"PYTHONUNBUFFERED", "TMPDIR"}


def checked_env(value: object) -> object:
    if not isinstance(value, Mapping):
        raise validation_error(f"must be a mapping of names to values; this is {kind_of(value)}.")
    if len(value) > MAX_VARIABLES:
        raise validation_error(f"may have at most {MAX_VARIABLES} variables; it has {len(value)}.")
    size = 0
    for name, text in value.items():
        if not isinstance(name, str) or not is_variable(name):
            raise validation_error(
                f"has the name {quoted(name)}; the name of a variable is a letter or '_', then letters, digits and "
                "'_', at most 128 characters."
            )
        if name in _OWN or name.startswith(_CLOSED_PREFIXES):
            raise validation_error(f"sets {name}, a variable of the service: choose another name.")
        if not isinstance(text, str):
            raise validation_error(f"has {quoted(text)} for {name}; a value is a string: write it in quotes.")
        if "\0" in text:
            raise validation_error(f"has a value for {name} with a NUL character, which no variable can hold.")
        size += len(name) + len(text.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        raise validation_error(f"may have at most {MAX_BYTES:,} bytes of names and values; it has {size:,}.")
    return value
