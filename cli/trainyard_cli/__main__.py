"""Entry points of `trainyard` and `jobs`. They load the program: Ctrl-C meanwhile is no traceback."""

import os
import sys

from trainyard_cli import help_text

# httpx has a command line of its own, for which it imports rich and Pygments: half of its time, for nobody here.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # so the import system notes what cannot be had

_INTERRUPTED = 130


def main() -> None:
    """Entry point of `trainyard`."""
    if text := help_text.of(sys.argv[1:]):
        _print(text)
    try:
        from trainyard_cli.main import main as run
    except KeyboardInterrupt:
        _interrupted()
    run()


def jobs_main() -> None:
    """Entry point of `jobs`, the same as `trainyard jobs`."""
    try:
        from trainyard_cli.main import jobs_main as run
    except KeyboardInterrupt:
        _interrupted()
    run()


def _print(text: str) -> None:
    """Print the text and end. Returns where it cannot be written: the program then says so."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        return
    os._exit(0)


def _interrupted() -> None:
    print("\nInterrupted.", file=sys.stderr)
    sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
