"""Entry points, and the conversion of errors to messages and exit codes.

0 success; 1 refused or failed, or a file cannot be used; 2 wrong usage; 3 not healthy (`trainyard status`, `doctor`);
70 a bug of ours, with the traceback in a file; 130 Ctrl-C; 141 broken pipe. A streamed job gives its own code.
"""

import contextlib
import errno
import gc
import io
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from trainyard_cli.commands import tree
from trainyard_cli.commands.shared.suggestions import pasted_dash
from trainyard_cli.output.text.safe import echo, without_field
from trainyard_cli.settings import COMPLETION_VARIABLE, default_state_dir
from trainyard_protocol.errors import InvalidArgument, TrainyardError

FAILED = 1
USAGE = 2
BUG = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

_OF_THE_FILE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG, errno.EIO)

_COLLECT_EVERY = 100_000
"""New objects before garbage is looked for: what a command loads stays, and looking takes a twelfth of its start."""


def main() -> NoReturn:
    """Entry point of `trainyard`."""
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from click.shell_completion import shell_complete

        with contextlib.suppress(KeyboardInterrupt):
            sys.exit(shell_complete(tree.trainyard, {}, "trainyard", COMPLETION_VARIABLE, instruction))
    gc.set_threshold(_COLLECT_EVERY)
    _leave(run(tree.trainyard, "trainyard", sys.argv[1:]))


def jobs_main() -> NoReturn:
    """Entry point of `jobs`, the same as `trainyard jobs`."""
    gc.set_threshold(_COLLECT_EVERY)
    _leave(run(tree.trainyard, "trainyard", ["jobs", *sys.argv[1:]]))


def _leave(code: int) -> NoReturn:
    """End the process. The interpreter takes nothing apart before, which would take as long as a short command."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed by whoever reads it
            stream.flush()
    os._exit(code)


def run(command: click.Command, name: str, arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. Errors go to stderr; nothing is raised."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the locale may not be able to print a log line
            stream.reconfigure(errors="backslashreplace")
    if invalid := [word for word in arguments if not _is_utf8(word)]:
        _print_error(f"ERROR: ({name}) the argument {invalid[0]!a} is not UTF-8 text.")
        return USAGE
    try:
        with command.make_context(name, list(arguments)) as context:
            result = command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        _print_error(error.format_message())
        return USAGE
    except click.UsageError as error:
        _print_error(_usage(error, pasted_dash(arguments)))
        return USAGE
    except click.ClickException as error:
        _print_error(f"ERROR: {error.format_message()}")
        return FAILED
    except (KeyboardInterrupt, click.Abort):
        _print_error("\nInterrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except TrainyardError as error:
        instead = pasted_dash(arguments) if type(error) is InvalidArgument else ""
        _print_error(f"ERROR: {instead or without_field(error.message)}")
        return FAILED
    except OSError as error:
        if failure := _file_failure(error):
            _print_error(f"ERROR: {failure}")
            return FAILED
        _print_error(_bug(error, arguments))
        return BUG
    except Exception as error:  # noqa: BLE001  a bug: one line for the user, the traceback in a file
        _print_error(_bug(error, arguments))
        return BUG
    return result if isinstance(result, int) else 0


def _is_utf8(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _usage(error: click.UsageError, instead: str) -> str:
    """A usage error in gcloud's form: the error, or what is said instead, the usage, how to get help."""
    message = instead or _out_of_range(error) or error.format_message()
    if error.ctx is None:
        return f"ERROR: {message}"
    path = error.ctx.command_path
    return (
        f"ERROR: ({path.replace(' ', '.')}) {message}\n"
        f"{error.ctx.get_usage()}\n"
        f"For detailed information on this command and its flags, run:\n  {path} --help"
    )


def _out_of_range(error: click.UsageError) -> str:
    """The message for a number outside of a flag's range; "" for any other error."""
    flag = error.param if isinstance(error, click.BadParameter) else None
    kind = flag.type if flag is not None else None
    if flag is None or not isinstance(kind, click.IntRange | click.FloatRange):
        return ""
    low = f", {'above' if kind.min_open else 'at least'} {kind.min:,}" if kind.min is not None else ""
    high = f", {'below' if kind.max_open else 'at most'} {kind.max:,}" if kind.max is not None else ""
    number = "a whole number" if isinstance(kind, click.IntRange) else "a number"
    given = error.message.partition(" is not ")[0].strip("'")
    return f"argument {flag.opts[0]}: must be {number}{low}{high}; this is {given}."


def _file_failure(error: OSError) -> str:
    """The message for a failure that is the file's; "" for any other, which is a bug."""
    if error.errno == errno.ENOENT and not error.filename and "temporary directory" in (error.strerror or ""):
        return f"{error.strerror}: give one that can be written and has room, in the variable TMPDIR."
    if error.errno == errno.EROFS and not error.filename:
        return "The output could not be written: its file system is read-only. Write elsewhere."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        written = error.filename or "The output"
        return f"{written} could not be written: {error.strerror}. Make room, or write elsewhere."
    if error.errno in _OF_THE_FILE and error.filename:
        return f"{error.filename} cannot be used: {error.strerror}. Check the path and its permissions."
    return ""


def _bug(error: Exception, arguments: Sequence[str]) -> str:
    import traceback  # with ast and tokenize, for a bug alone

    text = f"trainyard {' '.join(arguments)}\n\n{''.join(traceback.format_exception(error))}"
    reason = str(error).partition("\n")[0]
    problem = f"ERROR: this is a bug in trainyard: {type(error).__name__}{f': {reason}' if reason else ''}"
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


def _print_error(text: str) -> None:
    with contextlib.suppress(OSError):  # stderr may be closed, too
        echo(text, err=True)


def _silence_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter's last flush does not fail."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
