"""Upload of packages: to the server or to a bucket."""

import os
from contextlib import closing
from typing import TYPE_CHECKING

from trainyard_cli.submission.submit import Notify, Uploader
from trainyard_cli.v1_client import V1Client
from trainyard_programs.archives import Archive
from trainyard_protocol.errors import FailedPrecondition, TrainyardError
from trainyard_protocol.net.gcs import SCHEME, CloudStorage, split_url

if TYPE_CHECKING:
    from google.cloud.storage import Client as StorageClient


def to_server(client: V1Client) -> Uploader:
    """Uploader to the server, which stores each content once."""

    def upload(job_id: str, archive: Archive) -> str:
        return client.upload(archive.path, job_id)

    return upload


def to_bucket(bucket: str, emulator: str, notify: Notify) -> Uploader:
    """Uploads to gs://BUCKET/JOB/SHA256/FILE, the layout of gcloud. Raises FailedPrecondition.

    `emulator` is that of the local service, where a missing bucket is created; "" for any other storage.
    """

    def upload(job_id: str, archive: Archive) -> str:
        name, _ = split_url(bucket)
        blob = f"{job_id}/{archive.sha256}/{archive.path.name}"
        url = f"{SCHEME}{name}/{blob}"
        storage = cloud_storage(emulator)
        try:
            with storage.errors(url), closing(storage.client()) as client:
                if emulator:
                    _create_bucket(client, name)
                client.bucket(name).blob(blob).upload_from_filename(str(archive.path))
        except TrainyardError as error:
            raise FailedPrecondition(f"{archive.path.name} cannot be uploaded to {bucket}: {error.message}") from error
        notify(f"Uploaded {archive.path.name} to {url}.")
        return url

    return upload


def ensure_bucket(url: str, emulator: str, notify: Notify) -> None:
    """Create the bucket of gs://BUCKET/DIRECTORY in the emulator of the local service. Raises FailedPrecondition."""
    name, _ = split_url(url)
    storage = cloud_storage(emulator)
    try:
        with storage.errors(f"{SCHEME}{name}"), closing(storage.client()) as client:
            if _create_bucket(client, name):
                notify(f"Created the bucket gs://{name} in the local storage.")
    except (TrainyardError, ValueError) as error:
        raise FailedPrecondition(f"The bucket gs://{name} cannot be created in the local storage: {error}") from error


def cloud_storage(emulator: str) -> CloudStorage:
    """The storage of `STORAGE_EMULATOR_HOST` if set, else of the local service's `emulator`, else Google's."""
    return CloudStorage("This machine", os.environ.get("STORAGE_EMULATOR_HOST") or emulator)


def _create_bucket(client: "StorageClient", name: str) -> bool:
    """False if it exists."""
    from google.api_core.exceptions import Conflict

    try:
        client.create_bucket(name)
    except Conflict:
        return False
    return True
