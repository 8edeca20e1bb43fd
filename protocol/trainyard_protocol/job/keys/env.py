"""Rules of a job's own environment variables: names, values and their size. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from trainyard_protocol.errors import Violation, quoted
from trainyard_protocol.fields import MAX_ARGUMENT, kind_of, too_long, validation_error
from trainyard_protocol.job.keys.secrets import OWN_PREFIXES, OWN_VARIABLES, is_variable
from trainyard_protocol.job.ranks import RANK_NAMES

MAX_VARIABLES = 100
"""Variables of one job."""

MAX_BYTES = 2**19
"""All names and values together."""

MAX_TOGETHER = 2**20 - 2**16
"""Bytes of all arguments and variables of a job, which are in one request; the kernel lets a program have 2 MiB."""

_CLOSED_PREFIXES = (*OWN_PREFIXES, "STORAGE_EMULATOR_")
_OWN = OWN_VARIABLES - RANK_NAMES - {"PYTHONUNBUFFERED", "TMPDIR"}  # ranks are for `validation`: one replica has none


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


def too_long_for_a_program(args: Sequence[str], env: Mapping[str, str]) -> Iterator[Violation]:
    """Variables that the kernel does not pass to a program, where each is one text, NAME=VALUE; and arguments that are
    too many together."""
    together = sum(len(word.encode()) + 1 for word in (*args, *env, *env.values()))
    if together > MAX_TOGETHER:
        yield Violation(
            "args",
            f"are too long: {together:,} bytes with the variables; a job can have {MAX_TOGETHER:,}. Write them to a "
            "file, and give the program the file's path.",
        )
    for name, value in env.items():
        if (size := len(f"{name}={value}".encode())) > MAX_ARGUMENT:
            yield Violation(f"env.{name}", too_long(size, "a variable with its name"))
