"""Address of the server for MLflow's clients in replicas. Pure."""

from dataclasses import dataclass

THROUGH_STORAGE = "storage"
"""In place of an address: that of gs:// in the environment of replicas."""


@dataclass(frozen=True, slots=True)
class TrackingAddresses:
    """The server's address for processes and that for containers, "" where they reach none. `ca_file`: the certificates
    of an https:// server, where processes find them."""

    processes: str = ""
    containers: str = ""
    ca_file: str = ""

    def uri_in(self, runtime: str) -> str:
        return self.processes if runtime == "process" else self.containers
