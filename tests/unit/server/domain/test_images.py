"""Images that jobs of a project may bring."""

from trainyard_server.domain.images import AllowedImages

_ID = "0123456789abcdef" * 4
_MATCHES = (
    # pattern, image, whether it matches
    ("*", "gcr.io/any/thing:1", True),
    ("gcr.io/team/*", "gcr.io/team/trainer", True),
    ("gcr.io/team/*", "gcr.io/team/deep/trainer:1", True),
    ("gcr.io/team/*", "gcr.io/team-b/trainer", False),
    ("gcr.io/team/*", "gcr.io/team", False),
    ("gcr.io/team/*", "gcr.io.evil.com/team/trainer", False),
    ("gcr.io/team/*", "team/trainer", False),
    ("gcr.io/team/*", "gcr.io/team/../other/trainer", False),
    ("gcr.io/team/*", "gcr.io/team/trainer with words", False),
    ("gcr.io/team/*", "localhost:5000/gcr.io/team/trainer", False),
    ("*.gcr.io/team/*", "eu.gcr.io/team/trainer", True),
    ("gcr.io/team/trainer:v*", "gcr.io/team/trainer:v2", True),
    ("gcr.io/team/trainer:v*", "gcr.io/team/trainer", False),
    ("gcr.io/team/trainer:latest", "gcr.io/team/trainer", True),
    (f"gcr.io/team/trainer@sha256:{_ID}", f"gcr.io/team/trainer@sha256:{_ID}", True),
    (f"gcr.io/team/trainer@sha256:{_ID}", "gcr.io/team/trainer:1", False),
    ("ubuntu", "docker.io/library/ubuntu:24.04", True),
    ("docker.io/ubuntu", "ubuntu", True),
    ("library/*", "index.docker.io/ubuntu", True),
    ("trainyard/*", "trainyard/trainer:3f2a", True),
    ("python", "python", True),
    ("python", f"python@sha256:{_ID}", True),
    ("python", "docker.io/library/python:3.11", True),
    ("python", f"index.docker.io/library/python@sha256:{_ID}", True),
    ("python", "evildocker.io/library/python", False),
    ("python", "evil.docker.io/library/python", False),
    ("python", "docker.io.evil.com/library/python", False),
    ("python", "docker.io:5000/library/python", False),
    ("python", "evil.com:5000/docker.io/library/python", False),
    ("python", "localhost:5000/python", False),
    ("python", "Evil/python", False),  # capitals: a registry
    ("python", "DOCKER.IO/library/python", False),
    ("python", "evil/python", False),
    ("python", "library/library/python", False),
    ("python", "python/evil", False),
    ("python", "pythonx", False),
    ("python", "python:3.11:evil", False),
    ("python", "https://docker.io/library/python", False),
    ("python", "docker.io//python", False),
    ("python", "user@docker.io/library/python", False),
    ("python:3.*", "python:3.11", True),
    ("python:3.*", "evil:3.1", False),
    ("python:3.*", f"python:3.11@sha256:{_ID}", False),  # the digest decides, not the tag
    (f"python:3.11@sha256:{_ID}", f"python:9@sha256:{_ID}", True),
    ("evildocker.io/*", "evildocker.io/library/python", True),
    ("evildocker.io/*", "python", False),
    ("*.gcr.io/team/*", "evil.com/x.gcr.io/team/trainer", False),
    ("*/team/trainer", "evil.com/x/team/trainer", False),
    ("team*/trainer", "team.evil.com/trainer", False),
    ("registry:5000/team/*", "registry:5000/team/trainer:1", True),
    ("registry:5000/team/*", "registry:5001/team/trainer:1", False),
    ("GCR.io/team/*", "GCR.io/team/trainer", True),
    ("gcr.io/team/*", "GCR.io/team/trainer", False),  # an engine keeps both names apart
    ("localhost/*", "localhost/trainer", True),
    ("localhost/*", "trainer", False),
    ("docker.io/library/*", _ID[:12], False),
    ("*", _ID, False),
    ("*", f"sha256:{_ID}", False),
    ("*", "cafe", False),
    ("*", "cafe:latest", True),
    ("*", "", False),
)


def test_patterns_match_images_as_an_engine_reads_their_names() -> None:
    found = {(p, image, not AllowedImages([p]).refusal("x", image)) for p, image, _ in _MATCHES}
    assert found == set(_MATCHES)


def test_refusal_says_what_is_allowed() -> None:
    images = AllowedImages(["gcr.io/a/*", "ubuntu"], {"none": [], "any": None})
    assert images.refusal("p", "gcr.io/b/x").endswith("project p may bring; allowed are gcr.io/a/*, ubuntu.")
    assert images.refusal("none", "ubuntu").endswith("project none may bring; no image is.")
    assert images.refusal("any", _ID) == ""
    assert "give its name with a tag, such as cafe:latest." in images.refusal("p", "cafe")
