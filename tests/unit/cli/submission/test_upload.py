"""Upload of packages into a bucket of the local service's storage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from beds import storage_emulator
from trainyard_cli.submission.upload import cloud_storage, ensure_bucket, to_bucket
from trainyard_programs.archives import Archive
from trainyard_protocol.errors import FailedPrecondition


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    with storage_emulator.emulator() as url:
        yield url


def archive(tmp_path: Path) -> Archive:
    path = tmp_path / "trainer-1.0.tar.gz"
    path.write_bytes(b"package")
    return Archive(path, "0" * 64, path.stat().st_size)


def test_package_is_uploaded_as_gcloud_does_and_a_missing_bucket_is_created(tmp_path: Path, emulator: str) -> None:
    notices: list[str] = []
    url = to_bucket("gs://packages/", emulator, notices.append)("job", archive(tmp_path))
    assert url == f"gs://packages/job/{'0' * 64}/trainer-1.0.tar.gz"
    assert notices == [f"Uploaded trainer-1.0.tar.gz to {url}."]
    client = cloud_storage(emulator).client()
    blob = client.bucket("packages").blob(url.removeprefix("gs://packages/"))
    assert blob.download_as_bytes() == b"package"
    client.close()


def test_bucket_of_a_job_dir_is_created_once(emulator: str) -> None:
    notices: list[str] = []
    for _ in range(2):
        ensure_bucket("gs://runs/digits", emulator, notices.append)
    assert notices == ["Created the bucket gs://runs in the local storage."]


def test_upload_without_credentials_is_a_plain_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(FailedPrecondition) as raised:
        to_bucket("gs://b", "", print)("job", archive(tmp_path))
    assert raised.value.message == (
        "trainer-1.0.tar.gz cannot be uploaded to gs://b: This machine has no credentials for Google Cloud Storage: "
        "set GOOGLE_APPLICATION_CREDENTIALS in its environment to a file with them."
    )
