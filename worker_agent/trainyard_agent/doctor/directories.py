"""Directories of runs that no longer exist."""

from collections.abc import Iterator, Set
from pathlib import Path

from trainyard_agent.host.files import DamagedFile, read_json, remove_tree
from trainyard_protocol.views.health import Finding, sized

_RUNS = ("runs", "containers")
_STAGED = ("environments", "staging")
_REMOVED = ".removed-"


def orphans(state_dir: Path, live_runs: Set[str] | None) -> list[Path]:
    """Directories of interrupted removals, without run.json, or staged for runs that have ended."""
    orphans: list[Path] = []
    known = set(live_runs or ())
    for kind in _RUNS:
        for path in _below(state_dir / kind):
            if _is_run(path):
                known.add(path.name)
            else:
                orphans.append(path)
    if live_runs is not None:
        orphans += [path for kind in _STAGED for path in _below(state_dir / kind) if path.name not in known]
    return orphans


def findings(orphans: list[Path], fix: bool, complete: bool) -> Iterator[Finding]:
    for path in orphans:
        size = sized(_size(path))
        failure = _remove(path) if fix else ""
        if fix and not failure:
            yield Finding(check="directories", status="fixed", found=f"{path} was removed: {size}.")
            continue
        yield Finding(
            check="directories",
            status="problem",
            found=f"{path} belongs to no existing run: {size}.",
            meaning="It uses disk space until it is removed.",
            advice=failure or "`trainyard doctor --fix` removes it.",
            fixable=not failure,
        )
    if not orphans and complete:
        yield Finding(check="directories", status="ok", found="Every directory belongs to an existing run.")
    elif not complete:
        why = "Environments of ended runs could not be identified: the server could not be asked."
        yield Finding(check="directories", status="unknown", found=why)


def _below(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _is_run(path: Path) -> bool:
    """Whether it is a run's directory. One with a damaged run.json is: the agent removes it when it starts."""
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
    total = 0
    for one in (path, *path.rglob("*")):
        try:
            total += one.lstat().st_blocks * 512
        except OSError:  # removed in between, or not readable by this user
            continue
    return total
