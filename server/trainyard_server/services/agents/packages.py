"""Use cases of staged packages: the agent of a run downloads them, or gets links for replicas that do it themselves.
People download those of a job.

A link is open to whoever has it, while its run lives: it has a signature over the run and the package, and no token.
"""

import hashlib
import hmac
from pathlib import Path
from urllib.parse import quote

from trainyard_protocol.errors import NotFound, PermissionDenied
from trainyard_protocol.states import RunState
from trainyard_protocol.wire.sync import PackageLinks
from trainyard_server.context import Backend
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.services.agents.agent_keys import agents_with, live_run
from trainyard_server.services.jobs.known_jobs import known_job
from trainyard_server.storage.db.base.models import RunRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.uploads import SCHEME

_LABEL = b"links of packages"  # the key signs other things too


class Packages:
    def __init__(self, backend: Backend, key: bytes) -> None:
        self._backend = backend
        self._key = hmac.digest(key, _LABEL, hashlib.sha256)

    def for_agent(self, sha256: str, filename: str, key: AgentKey) -> Path:
        """The path of a package that a live run of this agent needs. Raises NotFound for others, PermissionDenied."""
        with self._backend.store.read() as reader:
            runs = [run for agent_id in agents_with(reader, key) for run in reader.live_runs(agent_id)]
            needed = {uri for run in runs for uri in _packages(reader, run)}
        if f"{SCHEME}{sha256}/{filename}" not in needed:
            raise NotFound(f"No run of this agent needs the package {filename} with the digest {sha256}.")
        return self._backend.uploads.path(sha256, filename)

    def of_job(self, project: str, job_id: str, sha256: str, filename: str) -> Path:
        """The path of a staged package of a job. Raises NotFound for another one, and for one that was removed."""
        with self._backend.store.read() as reader:
            uris = known_job(reader, project, job_id).training_input.get("packageUris", [])
        if f"{SCHEME}{sha256}/{filename}" not in uris:
            raise NotFound(f"The job {job_id} has no package {filename} with the digest {sha256}.")
        return self._backend.uploads.path(sha256, filename)

    def links(self, run_id: str, key: AgentKey) -> PackageLinks:
        """The links to the staged packages of a run, for its agent. Raises NotFound, PermissionDenied."""
        with self._backend.store.read() as reader:
            uris = _packages(reader, live_run(reader, run_id, key))
        staged = [uri.removeprefix(SCHEME) for uri in uris if uri.startswith(SCHEME)]
        return PackageLinks(
            paths={
                f"{SCHEME}{name}": f"/trainyard/v1/runs/{run_id}/packages/{quote(name)}"
                f"?signature={self._signature(run_id, name)}"
                for name in staged
            }
        )

    def by_link(self, run_id: str, sha256: str, filename: str, signature: str) -> Path:
        """The path of the package. Raises PermissionDenied for a link that this server did not make, NotFound once the
        run has ended."""
        name = f"{sha256}/{filename}"
        if not hmac.compare_digest(signature.encode(), self._signature(run_id, name).encode()):
            raise PermissionDenied("This link to a package has no valid signature.")
        with self._backend.store.read() as reader:
            run = reader.run(run_id)
            if run is None or run.state is RunState.ENDED:
                raise NotFound(f"The run {run_id} has ended: the links to its packages are no longer valid.")
        return self._backend.uploads.path(sha256, filename)

    def _signature(self, run_id: str, name: str) -> str:
        return hmac.new(self._key, f"{run_id}/{name}".encode(), hashlib.sha256).hexdigest()


def _packages(reader: Reader, run: RunRow) -> list[str]:
    uris: list[str] = reader.job_by_key(run.job_key).training_input.get("packageUris", [])
    return uris
