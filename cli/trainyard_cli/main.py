"""The entry points, and the one place where an error becomes a message and an exit code.

0 done; 1 refused or failed; 2 wrong usage; 3 not everything runs (`trainyard status`); 70 a bug of ours, its
traceback in a file; 130 Ctrl-C; 141 nobody reads our output any more. A streamed job gives its own code.
"""

import contextlib
import io
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from trainyard_cli.commands import tree as commands
from trainyard_cli.settings import default_state_dir
from trainyard_protocol.errors import TrainyardError

FAILED = 1
USAGE = 2
BUG = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

COMPLETION_VARIABLE = "_TRAINYARD_COMPLETE"


def main() -> NoReturn:
    """`trainyard ...`"""
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from click.shell_completion import shell_complete

        with contextlib.suppress(KeyboardInterrupt):
            sys.exit(shell_complete(commands.trainyard, {}, "trainyard", COMPLETION_VARIABLE, instruction))
    sys.exit(run(commands.trainyard, "trainyard", sys.argv[1:]))


def jobs_main() -> NoReturn:
    """`jobs ...`, the same as `trainyard jobs ...`."""
    sys.exit(run(commands.trainyard, "trainyard", ["jobs", *sys.argv[1:]]))


def run(command: click.Command, name: str, arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. Whatever goes wrong is said on stderr; nothing is raised."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a log line may hold what this locale cannot print
            stream.reconfigure(errors="backslashreplace")
    if unclear := [word for word in arguments if not _is_utf8(word)]:
        _say(f"ERROR: ({name}) the argument {unclear[0]!a} is not UTF-8 text.")
        return USAGE
    try:
        with command.make_context(name, list(arguments)) as context:
            result = command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        _say(error.format_message())
        return USAGE
    except click.UsageError as error:
        _say(_usage(error))
        return USAGE
    except click.ClickException as error:
        _say(f"ERROR: {error.format_message()}")
        return FAILED
    except (KeyboardInterrupt, click.Abort):
        _say("\nInterrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        _stop_writing()
        return BROKEN_PIPE
    except TrainyardError as error:
        _say(f"ERROR: {error.message}")
        return FAILED
    except Exception as error:  # noqa: BLE001  a bug: the user gets one line, the file gets everything
        _say(_bug(error, arguments))
        return BUG
    return result if isinstance(result, int) else 0


def _is_utf8(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _usage(error: click.UsageError) -> str:
    """A usage error in gcloud's form: what is wrong, the usage, where the help is."""
    if error.ctx is None:
        return f"ERROR: {error.format_message()}"
    path = error.ctx.command_path
    return (
        f"ERROR: ({path.replace(' ', '.')}) {error.format_message()}\n"
        f"{error.ctx.get_usage()}\n"
        f"For detailed information on this command and its flags, run:\n  {path} --help"
    )


def _bug(error: Exception, arguments: Sequence[str]) -> str:
    text = f"trainyard {' '.join(arguments)}\n\n{''.join(traceback.format_exception(error))}"
    said = str(error).partition("\n")[0]
    problem = f"ERROR: this is a bug in trainyard: {type(error).__name__}{f': {said}' if said else ''}"
    try:
        path = _crash_log(text)
    except OSError as full:
        return f"{problem} (the details could not be written: {full.strerror})"
    return f"{problem} (details: {path})"


def _crash_log(text: str) -> Path:
    directory = default_state_dir() / "crash"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{time.strftime('%Y%m%d_%H%M%S')}-{os.getpid()}.log"
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be listening on stderr either
        click.echo(text, err=True)


def _stop_writing() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain again."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
