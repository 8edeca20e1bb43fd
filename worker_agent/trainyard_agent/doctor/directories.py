"""Directories of runs that nobody knows any more."""

from collections.abc import Iterator, Set
from pathlib import Path

from trainyard_agent.host.files import DamagedFile, read_json, remove_tree
from trainyard_protocol.health import Finding, sized

_RUNS = ("runs", "containers")
_PREPARED = ("environments", "staging")
_REMOVED = ".removed-"


def leftovers(state_dir: Path, live_runs: Set[str] | None) -> list[Path]:
    """What a removal left behind, what has no run.json, and what was prepared for runs that are over."""
    found: list[Path] = []
    known = set(live_runs or ())
    for kind in _RUNS:
        for path in _below(state_dir / kind):
            if _is_run(path):
                known.add(path.name)
            else:
                found.append(path)
    if live_runs is not None:
        found += [path for kind in _PREPARED for path in _below(state_dir / kind) if path.name not in known]
    return found


def findings(found: list[Path], fix: bool, complete: bool) -> Iterator[Finding]:
    for path in found:
        size = sized(_size(path))
        trouble = _remove(path) if fix else ""
        if fix and not trouble:
            yield Finding(check="directories", status="fixed", found=f"{path} was removed: {size}.")
            continue
        yield Finding(
            check="directories",
            status="problem",
            found=f"{path} belongs to no run that is known: {size}.",
            meaning="It takes room on the disk, and nobody removes it.",
            advice=trouble or "`trainyard doctor --fix` removes it.",
            fixable=not trouble,
        )
    if not found and complete:
        yield Finding(
            check="directories", status="ok", found="Every directory belongs to a run that is known."
        )
    elif not complete:
        why = "Environments of runs that are over could not be told from others: the server was not to be asked."
        yield Finding(check="directories", status="unknown", found=why)


def _below(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _is_run(path: Path) -> bool:
    """A damaged run.json counts: its processes may live, and the agent deals with them when it starts."""
    if path.name.startswith(_REMOVED):
        return False
    try:
        return read_json(path / "run.json") is not None
    except DamagedFile:
        return True


def _remove(path: Path) -> str:
    try:
        remove_tree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except OSError as error:
        return f"It could not be removed: {error.strerror or error}."
    return ""


def _size(path: Path) -> int:
    size = 0
    for one in (path, *path.rglob("*")):
        try:
            size += one.lstat().st_blocks * 512
        except OSError:  # it went in between, or is closed to us
            continue
    return size
