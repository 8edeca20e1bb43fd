"""Entry points of `trainyard` and `jobs`. They load the program: Ctrl-C meanwhile is no traceback."""

import sys

try:
    from trainyard_cli.main import jobs_main, main
except KeyboardInterrupt:
    print("\nInterrupted.", file=sys.stderr)
    sys.exit(130)

__all__ = ["jobs_main", "main"]

if __name__ == "__main__":
    main()
