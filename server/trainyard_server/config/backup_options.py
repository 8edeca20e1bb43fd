"""Settings of backups: when they are made, where they go, and what is in them beside the data directory."""

from dataclasses import dataclass
from pathlib import Path

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.lines.time_parsing import parse_duration
from trainyard_protocol.settings import number, setting

_LEAST_S = 60.0


def _every(text: str) -> float:
    try:
        seconds = parse_duration(text).total_seconds()
    except ValueError as error:
        raise InvalidArgument(f"{error}.") from error
    if seconds < _LEAST_S:
        raise InvalidArgument(f"must be {_LEAST_S:g}s or more; this is {text!r}.")
    return seconds


@dataclass(frozen=True, slots=True)
class BackupOptions:
    """The schedule of backups, and further places that they include."""

    every_s: float | None = setting(
        None,
        "make a backup so often, such as `1d`, into `--backup-dir` ([backup](../how-to/operate.md#back-up))",
        "--backup-every",
        metavar="DURATION",
        read=_every,
    )
    keep: int = setting(
        7,
        "how many backups stay in `--backup-dir`; older ones of the schedule are deleted after each new one",
        "--backup-keep",
        metavar="N",
        read=number(int, 1),
    )
    directory: Path | None = setting(
        None, "where the schedule's backups are written, best on another disk", "--backup-dir", metavar="DIRECTORY"
    )
    storage_dir: Path | None = setting(
        None,
        "the directory of the storage behind `gs://` on this machine, whose buckets are in each backup. `trainyard up` "
        "gives it",
        "--backup-storage",
        metavar="DIRECTORY",
    )
    files: tuple[Path, ...] = setting(
        (),
        "a further file that is in each backup, such as a token. `trainyard up` gives its own",
        "--backup-file",
        metavar="FILE",
    )

    def check(self) -> None:
        """Raises InvalidArgument for a schedule without a directory."""
        if self.every_s is not None and self.directory is None:
            raise InvalidArgument("--backup-every needs --backup-dir, the directory where the backups are written.")
        if self.directory is not None and self.every_s is None:
            raise InvalidArgument("--backup-dir needs --backup-every, such as 1d: nothing is written there without it.")
