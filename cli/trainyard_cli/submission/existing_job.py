"""The job that already has the name of a submission."""

from collections.abc import Mapping
from typing import Any

from trainyard_cli.submission.comparison import check_same
from trainyard_cli.v1_client import V1Client
from trainyard_protocol.errors import AlreadyExists, NotFound


class ExistingJob:
    """The job that `submit` found under the name, for its `if_exists`; `job` is None while there was none."""

    def __init__(self, client: V1Client, name: str) -> None:
        self._client = client
        self._name = name
        self.job: dict[str, Any] | None = None

    def __call__(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """The job. Raises AlreadyExists if its content is another one, or if it was deleted."""
        try:
            job = self._client.get_job(self._name)
        except NotFound as error:
            raise AlreadyExists(
                f"A job {self._name} existed and was deleted. A name is never used again: give the job another one."
            ) from error
        check_same(job, requested)
        self.job = job
        return job
