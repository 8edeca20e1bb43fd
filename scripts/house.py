"""Figures of the house: what a newcomer reads on the two walks, where each capability lives, what taking one out is.

python scripts/house.py            # all three
python scripts/house.py notifications
"""

import ast
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
WALKS = tuple(ROOT / "docs" / "contributing" / page for page in ("a-field-of-a-job.md", "life-of-a-job.md"))
SERVER = "server/trainyard_server/capabilities"
CLI = "cli/trainyard_cli/capabilities"
REGISTRIES = (f"{SERVER}/registry.py", "cli/trainyard_cli/commands/tree.py")
_FOLDERS = ("cli", "protocol", "programs", "sdk", "server", "storage", "worker_agent")


class Figures(NamedTuple):
    """Files of the walks, their lines, and their imports of capabilities."""

    files: Sequence[Path]
    lines: int
    imports: int


def walked(pages: Sequence[Path] = WALKS) -> Figures:
    """The figures of both walks together; a file that both name is read once."""
    files = sorted({file for page in pages for file in _named(page)})
    texts = [file.read_text(encoding="utf-8") for file in files]
    imports = sum(module.startswith(CAPABILITY_PACKAGES) for text in texts for module in _imported(text))
    return Figures(files, sum(text.count("\n") for text in texts), imports)


CAPABILITY_PACKAGES = ("trainyard_server.capabilities.", "trainyard_cli.capabilities.")


def capabilities() -> Sequence[str]:
    """The names of all capabilities, of the server and of the command line."""
    folders = [*(ROOT / SERVER).iterdir(), *(ROOT / CLI).iterdir()]
    return sorted({folder.name for folder in folders if (folder / "__init__.py").exists()})


def homes(name: str) -> Sequence[str]:
    """The folders, and files of their own, that a capability has outside of the registries."""
    found = [f"{top}/{name}" for top in (SERVER, CLI, "tests/capabilities") if (ROOT / top / name).is_dir()]
    for folder in ("job/keys", "answers"):
        files = (ROOT / "protocol/trainyard_protocol" / folder).rglob(f"{name}.py")
        found += [str(file.relative_to(ROOT)) for file in files]
    return found


def lines_of(name: str) -> Sequence[str]:
    """The lines of the registries that name it."""
    texts = [(ROOT / registry).read_text(encoding="utf-8") for registry in REGISTRIES]
    return [line.strip() for text in texts for line in text.splitlines() if _names(line, name)]


def remove(root: Path, name: str) -> None:
    """Delete a capability from a copy of the repository: its folders, and its lines in the registries."""
    for top in (SERVER, CLI, "tests/capabilities"):
        shutil.rmtree(root / top / name, ignore_errors=True)
    for registry in REGISTRIES:
        lines = (root / registry).read_text(encoding="utf-8").splitlines(keepends=True)
        (root / registry).write_text("".join(line for line in lines if not _names(line, name)), encoding="utf-8")


def _names(line: str, name: str) -> bool:
    return re.search(rf"\bcapabilities\.{name}\.|^    {name.upper()},$", line) is not None


def has_tables(name: str) -> bool:
    """Whether taking it out needs a migration."""
    folder = ROOT / SERVER / name
    return any("Row" in file.read_text(encoding="utf-8") for file in folder.rglob("*store.py"))


def _named(page: Path) -> Iterator[Path]:
    """The Python files that a page names, whole or by their end."""
    for name in re.findall(r"`([\w./-]+\.py)`", page.read_text(encoding="utf-8")):
        matches = [ROOT / name] if (ROOT / name).exists() else _ending(name)
        if len(matches) != 1:
            raise ValueError(f"{page.name} names {name}, which are {len(matches)} files")
        yield matches[0]


def _ending(name: str) -> list[Path]:
    return [file for top in _FOLDERS for file in (ROOT / top).rglob(name) if "build" not in file.parts]


def _imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield f"{node.module}."
        elif isinstance(node, ast.Import):
            yield from (f"{name.name}." for name in node.names)


def main(names: Sequence[str]) -> None:
    if not names:
        figures = walked()
        print(f"The two walks: {len(figures.files)} files, {figures.lines:,} lines, {figures.imports} imports of")
        print("capabilities.")
    for name in names or capabilities():
        print(f"\n{name}: {len(homes(name))} homes")
        print("".join(f"    {home}\n" for home in homes(name)), end="")
        migration = ", and a migration" if has_tables(name) else ""
        print(f"    taken out: these, {len(lines_of(name))} lines of the registries{migration}")


if __name__ == "__main__":
    main(sys.argv[1:])
