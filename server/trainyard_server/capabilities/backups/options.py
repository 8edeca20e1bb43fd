"""Settings of backups: what is in them beside the data directory."""

from dataclasses import dataclass
from pathlib import Path

from trainyard_protocol.settings import setting
from trainyard_server.config.settings import CapabilitySettings


@dataclass(frozen=True, slots=True)
class BackupOptions(CapabilitySettings):
    """Further places that backups include."""

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
