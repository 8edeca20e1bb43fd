"""Writes the help that is printed without loading the command tree.

    help_pages.py            write them; part of `make docs` and `make dist`
    help_pages.py --check    print those that are not as they would be written

A process of its own: click keeps options of help that somebody has rendered before in another way.
tests/unit/cli/test_help_text.py holds the files equal to the tree.
"""

import sys
from pathlib import Path

from trainyard_cli.commands import tree

ROOT = Path(__file__).parent.parent
HELP = ROOT / "cli/trainyard_cli/help"

WIDTHS = (80, 110)
"""Columns: those without a terminal, and the widest that click uses here."""


def files() -> dict[Path, str]:
    """The files and what each has to contain."""
    return {HELP / f"{columns}.txt": help_page(columns) for columns in WIDTHS}


def help_page(columns: int) -> str:
    """The page of `trainyard --help` on a terminal of that many columns."""
    with tree.trainyard.make_context("trainyard", [], resilient_parsing=True, terminal_width=columns - 2) as context:
        return context.get_help() + "\n"


def main(check: bool) -> int:
    stale = [path for path, text in files().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(path.relative_to(ROOT))
    if check:
        return len(stale)
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(check=sys.argv[1:] == ["--check"]))
