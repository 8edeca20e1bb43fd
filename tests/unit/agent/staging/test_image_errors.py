"""Causes of failed pulls, by messages as engines and registries write them."""

import pytest

from trainyard_agent.staging.image_errors import PullCause, cause, verdict

_UNPACK = "rpc error: code = Unknown desc = failed to pull and unpack image"
_RESOLVE = f'{_UNPACK} "r.test/x:1": failed to resolve reference "r.test/x:1"'

MESSAGES = {
    PullCause.AWAY: [
        # Docker
        'Get "http://127.0.0.1:1/v2/": dial tcp 127.0.0.1:1: connect: connection refused',
        'Get "https://r.invalid/v2/": dial tcp: lookup r.invalid on 10.0.0.53:53: no such host',
        'Get "https://r.test/v2/": dial tcp: lookup r.test on 10.0.0.53:53: server misbehaving',
        'Get "https://r.test/v2/": dial tcp 10.0.0.1:443: connect: permission denied',
        'Get "https://r.test/v2/": read tcp 10.0.0.2:41234->10.0.0.1:443: read: connection reset by peer',
        'Get "https://r.test/v2/": net/http: TLS handshake timeout',
        'Get "https://r.test/v2/": net/http: request canceled while waiting for connection (Client.Timeout exceeded '
        "while awaiting headers)",
        'Get "https://r.test/v2/": context deadline exceeded',
        'Get "https://r.test/v2/": EOF',
        "unexpected EOF",
        "received unexpected HTTP status: 500 Internal Server Error",
        "received unexpected HTTP status: 502 Bad Gateway",
        "received unexpected HTTP status: 503 Service Unavailable",
        'error parsing HTTP 429 response body: unexpected end of JSON input: ""',
        "error parsing HTTP 503 response body: invalid character '<' looking for beginning of value: \"<html>the page "
        'was not found, access denied</html>"',
        "toomanyrequests: You have reached your pull rate limit.",
        "filesystem layer verification failed for digest sha256:404404404404",
        'Head "https://r.test/v2/denied/unauthorized/manifests/x509": EOF',
        # containerd and the kubelet
        f'{_RESOLVE}: failed to do request: Head "https://r.test/v2/x/manifests/1": dial tcp 10.0.0.1:443: i/o timeout',
        f"{_RESOLVE}: unexpected status from HEAD request to https://r.test/v2/x/manifests/1: 503 Service Unavailable",
        f"{_RESOLVE}: failed to authorize: failed to fetch anonymous token: unexpected status from GET request to "
        "https://auth.r.test/token?scope=repository%3Ax%3Apull: 502 Bad Gateway",
        f'{_UNPACK} "r.test/x:1": failed to copy: httpReadSeeker: failed open: unexpected status code '
        "https://r.test/v2/x/blobs/sha256:0: 429 Too Many Requests - Server message: toomanyrequests: slower",
        'Back-off pulling image "r.test/not-found:1"',
        # Apptainer
        "While making image from oci registry: error fetching image: failed to get checksum for docker://r.test/x:1: "
        'pinging container registry r.test: Get "https://r.test/v2/": dial tcp 10.0.0.1:443: connect: no route to '
        "host",
        "While making image: initializing source docker://r.test/x:1: pinging container registry r.test: received "
        "unexpected HTTP status: 504 Gateway Timeout",
        "While making image: Requesting bearer token: invalid status code from registry 503 (Service Unavailable)",
        "something new",
    ],
    PullCause.REFUSED: [
        "manifest for r.test/x:2 not found: manifest unknown: manifest unknown",
        "repository r.test/y not found: name unknown: repository name not known to registry",
        "pull access denied for x, repository does not exist or may require 'docker login': denied: requested access "
        "to the resource is denied",
        'Head "https://r.test/v2/x/manifests/1": no basic auth credentials',
        "unauthorized: authentication required",
        "error parsing HTTP 403 response body: invalid character '<' looking for beginning of value: \"<html>\"",
        'error parsing HTTP 404 response body: unexpected end of JSON input: ""',
        'error parsing HTTP 410 response body: unexpected end of JSON input: ""',
        "no matching manifest for linux/amd64 in the manifest list entries",
        "invalid reference format: repository name must be lowercase",
        "invalid tag format",
        'Get "https://r.test/v2/": x509: certificate signed by unknown authority',
        'Get "https://r.test/v2/": http: server gave HTTP response to HTTPS client',
        'Get "https://r.test/v2/": tls: first record does not look like a TLS handshake',
        f'{_UNPACK} "r.test/x:1": no match for platform in manifest sha256:0: not found',
        f"rpc error: code = NotFound desc = {_RESOLVE}: r.test/x:1: not found",
        f"{_RESOLVE}: unexpected status from HEAD request to https://r.test/v2/x/manifests/1: 401 Unauthorized",
        f"{_RESOLVE}: pull access denied, repository does not exist or may require authorization: server message: "
        "insufficient_scope: authorization failed",
        f'{_RESOLVE}: failed to do request: Head "https://r.test/v2/x/manifests/1": tls: failed to verify certificate: '
        "x509: certificate has expired or is not yet valid",
        "While making image: reading manifest 1 in r.test/x: manifest unknown",
        "While making image: reading manifest 1 in r.test/x: StatusCode: 403, <html>...",
    ],
    PullCause.NO_ROOM: [
        "failed to register layer: Error processing tar file(exit status 1): write /usr/lib/x: no space left on device",
        f'{_UNPACK} "r.test/x:1": failed to extract layer sha256:0: write /var/lib/x: disk quota exceeded',
    ],
}


def test_message_of_a_failed_pull_has_a_cause() -> None:
    wrong = [
        (expected, cause(words), words)
        for expected, messages in MESSAGES.items()
        for words in messages
        if cause(words) is not expected
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("unauthorized: authentication required", "run `docker login` on its machine"),
        ("manifest unknown", "image not found (manifest unknown)."),
        ("x509: certificate signed by unknown authority", "the certificate of its registry is not trusted"),
        ("no matching manifest for linux/arm64", "it has no image for the platform"),
        ("toomanyrequests: slower.", "the registry's rate limit is reached (toomanyrequests: slower)."),
        ("no space left on device", "the disk is full"),
        ("dial tcp 10.0.0.1:5000: i/o timeout", "registry unreachable"),
    ],
)
def test_verdict_names_the_image_with_a_meaning_and_the_engines_words(words: str, meaning: str) -> None:
    _, message = verdict("r/x:1", words, "docker login", "the disk")
    assert message.startswith("r/x:1: ")
    assert meaning in message
    assert words.rstrip(".") in message
