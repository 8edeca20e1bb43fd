"""Entry points of `trainyard` and `jobs`. They load the program: Ctrl-C meanwhile is no traceback."""

import os
import sys
from types import ModuleType

# httpx has a command line of its own, for which it imports rich and Pygments: half of its time, for nobody here.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # so the import system notes what cannot be had

_INTERRUPTED = 130


def main() -> None:
    """Entry point of `trainyard`."""
    _open_closed_streams()
    _program().main()


def jobs_main() -> None:
    """Entry point of `jobs`, the same as `trainyard jobs`."""
    _open_closed_streams()
    _program().jobs_main()


def _open_closed_streams() -> None:
    """Open the standard streams that were closed (`>&-`) on /dev/null, as git does: else the next file or connection
    that is opened has the descriptor, and gets what is printed."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest descriptor that is free, which is this one
        if getattr(sys, name) is None:
            stream = open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - for as long as we run
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _program() -> ModuleType:
    try:
        from trainyard_cli import main as program
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    return program


if __name__ == "__main__":
    main()
