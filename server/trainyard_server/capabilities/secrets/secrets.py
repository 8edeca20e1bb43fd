"""Use cases of secrets: people set, list and delete them; the agent of a run gets the values that its job refers to."""

import logging
from collections.abc import Iterator

from trainyard_protocol.answers.secrets import MAX_SECRETS, RunSecrets, SecretRequest, SecretsView, SecretView
from trainyard_protocol.errors import FailedPrecondition, NotFound, ResourceExhausted
from trainyard_server.capabilities.secrets import rules, store
from trainyard_server.capabilities.secrets.cipher import KeyProblem, SecretCipher
from trainyard_server.capabilities.secrets.tables import SecretRow
from trainyard_server.context import Backend
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.services.agents.agent_keys import live_run
from trainyard_server.services.jobs.known_jobs import check_project
from trainyard_server.storage.db.tables.audit_trail import current_trail

logger = logging.getLogger(__name__)

RESTORE_KEY = "Restore the file from a backup; or delete the secrets of all projects, and set them again."


class Secrets:
    def __init__(self, backend: Backend, cipher: SecretCipher) -> None:
        self._backend = backend
        self._cipher = cipher

    def check_key(self) -> None:
        """Log an error if the key is missing although there are secrets. Jobs without secrets run as ever."""
        with self._backend.store.read() as reader:
            if store.any_exists(reader) and not self._cipher.key_file.exists():
                logger.error(
                    "%s is missing, the key of all secrets: none can be set, and jobs that refer to one fail. %s",
                    self._cipher.key_file,
                    RESTORE_KEY,
                )

    def examine(self) -> Iterator[str]:
        """The reason why it cannot be decrypted, or "", for each secret."""
        with self._backend.store.read() as reader:
            secrets = store.of_all_projects(reader)
        for row in secrets:
            try:
                self._cipher.decrypt(row.project, row.name, row.ciphertext)
            except (KeyProblem, OSError) as error:
                yield f"The secret {row.name} of {row.project} cannot be decrypted. {error}"
            else:
                yield ""

    def list(self, project: str) -> SecretsView:
        with self._backend.store.read() as reader:
            return SecretsView(secrets=tuple(map(_view, store.of_project(reader, project))))

    def set(self, caller: Caller, project: str, name: str, request: SecretRequest) -> SecretView:
        """Store a value, in place of an earlier one.

        Raises InvalidArgument for a name or a value beyond its bounds, ResourceExhausted, FailedPrecondition without
        the key of those that are stored.
        """
        check_project(project)
        rules.check_name(name)
        rules.check_value(request.value)
        with self._backend.store.write() as writer:
            if store.missing(writer, project, [name]) and store.count(writer, project) >= MAX_SECRETS:
                raise ResourceExhausted(
                    f"The project {project} has {MAX_SECRETS} secrets, the most there may be. "
                    "`trainyard secrets list` shows which are used."
                )
            try:
                is_first = not store.any_exists(writer)
                ciphertext = self._cipher.encrypt(project, name, request.value, is_first=is_first)
            except KeyProblem as problem:
                raise FailedPrecondition(f"No secret can be set now. {problem} {RESTORE_KEY}") from problem
            store.save(writer, project, name, ciphertext, caller.name, self._backend.clock())
            (row,) = [row for row in store.of_project(writer, project) if row.name == name]
            return _view(row)

    def delete(self, project: str, name: str) -> None:
        """Delete a secret. Runs that have it keep it; a job that refers to it and starts later fails. Raises
        NotFound."""
        with self._backend.store.write() as writer:
            removed = store.remove(writer, project, name)
        if not removed:
            raise NotFound(f"The project {project} has no secret {name}. `trainyard secrets list` shows which it has.")

    def of_run(self, run_id: str, key: AgentKey) -> RunSecrets:
        """The values for a live run, for its agent, by the names in its job.

        Raises NotFound, PermissionDenied, and FailedPrecondition where the run cannot be started: with what to do.
        """
        with self._backend.store.write() as writer:
            job = writer.job_by_key(live_run(writer, run_id, key).job_key)
            training_input, _ = writer.job_input(job)
            names = {reference.name for reference in training_input.secrets}
            if trail := current_trail():
                trail.project, trail.subject = job.project, f"{job.job_id}: {', '.join(sorted(names))}"
            stored = {row.name: row for row in store.of_project(writer, job.project) if row.name in names}
            if gone := sorted(names - stored.keys()):
                raise FailedPrecondition(
                    f"The project {job.project} has no secret {', '.join(gone)} any more: it was deleted after the job "
                    f"was submitted. Set it again (`trainyard secrets set {gone[0]}`) and submit the job again."
                )
            values = {name: self._decrypted(row) for name, row in stored.items()}
            store.mark_used(writer, job.project, names, job.job_id, self._backend.clock())
        return RunSecrets(values=values)

    def _decrypted(self, row: SecretRow) -> str:
        try:
            return self._cipher.decrypt(row.project, row.name, row.ciphertext)
        except KeyProblem as problem:
            logger.exception(
                "The secret %s of %s cannot be decrypted with %s", row.name, row.project, self._cipher.key_file
            )
            raise FailedPrecondition(
                f"The secret {row.name} cannot be decrypted. {problem} The operator of the server can restore the "
                f"key; or delete the secret and set it again (`trainyard secrets set {row.name}`)."
            ) from problem


def _view(row: SecretRow) -> SecretView:
    return SecretView.model_validate(row, from_attributes=True)
