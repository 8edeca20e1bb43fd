"""Entry points of `trainyard` and `jobs`. They load the program: Ctrl-C meanwhile is no traceback."""

import sys

# httpx has a command line of its own, for which it imports rich and Pygments: half of its time, for nobody here.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # so the import system notes what cannot be had

try:
    from trainyard_cli.main import jobs_main, main
except KeyboardInterrupt:
    print("\nInterrupted.", file=sys.stderr)
    sys.exit(130)

__all__ = ["jobs_main", "main"]

if __name__ == "__main__":
    main()
