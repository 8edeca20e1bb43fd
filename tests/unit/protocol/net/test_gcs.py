"""Google Cloud Storage: addresses, and Google's errors in plain words."""

import builtins
import sys

import pytest

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, TrainyardError, Unavailable
from trainyard_protocol.net.gcs import CloudStorage, NoSuchObject, problem_of, split_url, without_secret

URL = "gs://b/x"


def test_storage_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain install of the command line has no google-cloud-storage."""
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    storage = CloudStorage("This machine")
    with pytest.raises(FailedPrecondition, match=r"This machine cannot use gs://.*pip install 'trainyard\[gcs\]'"):
        storage.client()
    with pytest.raises(FailedPrecondition, match="not installed"), storage.errors(URL):
        pytest.fail("the storage is used")


def storage_error(name: str) -> Exception:
    from google.api_core import exceptions as api  # imports grpc
    from google.auth import exceptions as auth

    kind = getattr(api, name, None) or getattr(auth, name, None) or getattr(builtins, name)
    error: Exception = kind("x")
    return error


def test_url_that_names_no_bucket_or_object_is_refused_with_a_sentence() -> None:
    """Google's client sends `gs://b/..` on as the path of the bucket, and raises ValueError for the others."""
    fine = ("gs://b", "gs://b/", "gs://a-b_c.d1/x", "gs://b/a/../b", "gs://b/" + "x" * 1024)
    assert [url for url in fine if problem_of(url)] == []
    buckets = ("", ".", "..", "-b", "b-", "b/../c"[1:], "b c", "b\nc", "é", "a" * 223, "b?c", "b%2Fc", "\ud800")
    wrong = [*(f"gs://{bucket}/x" for bucket in buckets), "gs://b/.", "gs://b/..", "gs://b/../", "gs://b/a\rb"]
    for url in [*wrong, "gs://b/" + "é" * 513]:
        with pytest.raises(InvalidArgument) as refused:
            split_url(url)
        assert refused.value.message.isprintable(), url


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("NotFound", NoSuchObject, "gs://b/x does not exist."),
        ("Forbidden", FailedPrecondition, "The agent may not access gs://b/x (HTTP 403)."),
        (
            "DefaultCredentialsError",
            FailedPrecondition,
            "The agent has no credentials for Google Cloud Storage: set GOOGLE_APPLICATION_CREDENTIALS in its "
            "environment to a file with them.",
        ),
        ("InternalServerError", Unavailable, "Google Cloud Storage failed for gs://b/x (HTTP 500)."),
        ("ConnectionError", Unavailable, "Google Cloud Storage does not answer."),
    ],
)
def test_error_of_the_storage_is_plain_and_keeps_its_cause(name: str, kind: type[TrainyardError], message: str) -> None:
    error = storage_error(name)
    with pytest.raises(kind) as raised, CloudStorage("The agent").errors(URL):
        raise error
    assert raised.value.message == message
    assert raised.value.__cause__ is error


def test_secret_in_the_address_of_an_emulator_is_never_shown() -> None:
    shown = {
        "http://127.0.0.1:8471/s3cret": "http://127.0.0.1:8471/***",
        "http://host.docker.internal:1/a/b": "http://host.docker.internal:1/***",
        "localhost:1/s3cret": "localhost:1/***",
        "https://storage.example": "https://storage.example",
        "http://h:1/": "http://h:1/",
        "": "",
    }
    assert {address: without_secret(address) for address in shown} == shown
    with pytest.raises(Unavailable, match=r"Storage at http://h:9/\*\*\* "), CloudStorage("I", "h:9/s").errors(URL):
        raise ConnectionError
