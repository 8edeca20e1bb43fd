"""Entry points of `trainyard` and `jobs`. They load the program: Ctrl-C meanwhile is no traceback."""

import os
import sys
from types import ModuleType

from trainyard_cli import help_text

# httpx has a command line of its own, for which it imports rich and Pygments: half of its time, for nobody here.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # so the import system notes what cannot be had

_INTERRUPTED = 130


def main() -> None:
    """Entry point of `trainyard`."""
    if text := help_text.of(sys.argv[1:]):
        _print(text)
    _program().main()


def jobs_main() -> None:
    """Entry point of `jobs`, the same as `trainyard jobs`."""
    _program().jobs_main()


def _program() -> ModuleType:
    try:
        from trainyard_cli import main as program
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    return program


def _print(text: str) -> None:
    """Print the text and end. Returns where it cannot be written: the program then says so."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        return
    os._exit(0)


if __name__ == "__main__":
    main()
