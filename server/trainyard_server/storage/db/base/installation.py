"""Installation id: ties a database to its one data directory, which all server processes share."""

import uuid
from pathlib import Path

from trainyard_protocol.errors import FailedPrecondition
from trainyard_server.storage.db.store import Store

FILE = "installation"


def join(store: Store, data_dir: Path) -> None:
    """Tie the database to the directory, the first time. Raises FailedPrecondition if it belongs to another one."""
    if store.exclusive:
        return  # SQLite is in the directory
    path = data_dir / FILE
    with store.write() as writer:
        belongs_to = writer.installation()
        own = path.read_text(encoding="ascii").strip() if path.exists() else ""
        if not belongs_to:
            belongs_to = own or uuid.uuid4().hex
            path.write_text(f"{belongs_to}\n", encoding="ascii")
            writer.set_installation(belongs_to)
        elif own != belongs_to:
            raise FailedPrecondition(
                f"The database belongs to the data directory of the installation {belongs_to}; {data_dir} is "
                f"{f'that of {own}' if own else 'of none'}. Servers on one database share one data directory, where "
                f"the logs are: give this one the same --data-dir. To use {data_dir} although it lacks the logs so "
                f"far, write {belongs_to} into {path}."
            )
