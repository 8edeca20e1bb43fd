"""Fetching an object from Google Cloud Storage, or from the emulator that stands in for it."""

from pathlib import Path


class DownloadFailed(Exception):
    """Says which object, and why."""


class NoSuchObject(DownloadFailed):
    """There is nothing of that name, so trying again would not help."""


def download(bucket: str, name: str, target: Path, emulator: str = "") -> None:
    """Write the object to `target`. `emulator` is an `http://host:port`, or "" for Google's own, with the
    credentials of whoever runs the agent. Blocks. Raises DownloadFailed, and leaves no file."""
    from google.api_core.exceptions import GoogleAPIError, NotFound
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import storage

    try:
        if emulator:
            client = storage.Client(
                project="trainyard",
                credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
                client_options={"api_endpoint": emulator},
            )
        else:
            client = storage.Client()
        try:
            client.bucket(bucket).blob(name).download_to_filename(str(target))
        finally:
            client.close()
    except NotFound as error:
        target.unlink(missing_ok=True)
        raise NoSuchObject(f"gs://{bucket}/{name} does not exist") from error
    except (GoogleAPIError, GoogleAuthError, OSError) as error:  # an OSError: also what requests raises
        target.unlink(missing_ok=True)
        raise DownloadFailed(f"gs://{bucket}/{name}: {error}") from error
