"""Where packages go before a job runs: to the server, or into a bucket."""

import os
from typing import Any

from trainyard_cli.client import Client
from trainyard_cli.submission.packaging import Archive
from trainyard_cli.submission.submit import Say, Uploader
from trainyard_protocol.errors import FailedPrecondition


def to_server(client: Client) -> Uploader:
    """The server keeps packages by their content: the same one again costs nothing."""

    def upload(_job_id: str, archive: Archive) -> str:
        return client.upload(archive.path).uri

    return upload


def to_bucket(bucket: str, emulator: str, say: Say) -> Uploader:
    """gs://BUCKET/JOB/SHA256/FILE, as gcloud lays it out.

    `emulator` is the address of the local service's storage, "" for Google's (or whatever
    STORAGE_EMULATOR_HOST names). The local storage makes a bucket that is missing.
    """

    def upload(job_id: str, archive: Archive) -> str:
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError

        name = bucket.removeprefix("gs://").rstrip("/")
        blob = f"{job_id}/{archive.sha256}/{archive.path.name}"
        try:
            storage = storage_client(emulator)
            if emulator:
                _make_bucket(storage, name)
            storage.bucket(name).blob(blob).upload_from_filename(str(archive.path))
        except (GoogleAPIError, GoogleAuthError, OSError) as error:
            raise FailedPrecondition(
                f"{archive.path.name} cannot be uploaded to {bucket}: {error}"
            ) from error
        say(f"Uploaded {archive.path.name} to gs://{name}/{blob}.")
        return f"gs://{name}/{blob}"

    return upload


def ensure_bucket(url: str, emulator: str, say: Say) -> None:
    """Make the bucket of gs://BUCKET/DIRECTORY in the local service's storage, where nobody else could have.

    Raises FailedPrecondition when the storage does not do it.
    """
    from google.api_core.exceptions import GoogleAPIError

    name = url.removeprefix("gs://").partition("/")[0]
    try:
        if _make_bucket(storage_client(emulator), name):
            say(f"Made the bucket gs://{name} in the local storage.")
    except (GoogleAPIError, OSError, ValueError) as error:
        raise FailedPrecondition(
            f"The bucket gs://{name} cannot be made in the local storage: {error}"
        ) from error


def storage_client(emulator: str) -> Any:
    """Google's client: to the emulator at that address, "" for Google's own (or STORAGE_EMULATOR_HOST's)."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    if not emulator or os.environ.get("STORAGE_EMULATOR_HOST"):
        return storage.Client()
    anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]
    return storage.Client(project="local", credentials=anonymous, client_options={"api_endpoint": emulator})


def _make_bucket(storage: Any, name: str) -> bool:
    if storage.lookup_bucket(name) is not None:
        return False
    storage.create_bucket(name)
    return True
