"""`trainyard runtimes` against a real engine, with a Dockerfile that fetches nothing."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from beds.engines import Engine
from trainyard_cli.commands import tree
from trainyard_cli.main import run

DOCKERFILE = """\
ARG BASE_IMAGE=nowhere
FROM ${BASE_IMAGE}
ARG GREETING=none
COPY requirements.txt ca-bundle.crt /opt/
RUN python3 -m venv --without-pip /opt/runtime && echo "$GREETING" > /opt/greeting
ENV PATH=/opt/runtime/bin:$PATH
"""


@dataclass
class Site:
    """A table of a site's own with one image, `tiny`."""

    engine: Engine
    directory: Path
    image: str

    def run(self, *words: str) -> int:
        command = ["runtimes", *words, "--runtimes", str(self.directory / "runtimes.yaml")]
        return run(tree.trainyard, "trainyard", command)

    def read(self, command: str) -> str:
        return str(
            self.engine.client()
            .containers.run(self.image, ["sh", "-c", command], remove=True, network_mode="none")
            .decode()
        )


@pytest.fixture
def site(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    image = f"trainyard-test-{uuid.uuid4().hex[:12]}:1"
    base = engine.base_image
    (tmp_path / "runtimes.yaml").write_text(
        f"images: {{tiny: {{image: '{image}', dockerfile: Dockerfile, baseImage: '{base}', packages: [einops]}}}}\n"
        "versions: {'9.9': {cpu: tiny}}\n"
    )
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    yield Site(engine, tmp_path, image)
    client = engine.client()
    if client.images.list(image):
        client.images.remove(image, force=True)
    client.images.prune({"dangling": True, "label": "trainyard.test=failing"})


def here(site: Site, capsys: pytest.CaptureFixture[str]) -> object:
    capsys.readouterr()
    assert site.run("list", "-o", "json") == 0
    return next(row["here"] for row in json.loads(capsys.readouterr().out) if row["name"] == "tiny")


def test_image_that_was_built_is_listed_and_has_what_it_was_given(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    certificates = site.directory / "ca.pem"
    certificates.write_text("certificates\n")
    assert here(site, capsys) is False
    assert site.run("build", "tiny", "--build-arg", "GREETING=hello", "--ca-bundle", str(certificates)) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"Built {site.image}: ")
    assert "tiny  2/6  FROM ${BASE_IMAGE}" in printed.err.splitlines()
    assert here(site, capsys) is True
    built = site.read("command -v python3; cat /opt/greeting /opt/ca-bundle.crt; grep -c . /opt/requirements.txt")
    assert built.splitlines()[:3] == ["/opt/runtime/bin/python3", "hello", "certificates"]
    assert "einops" in site.read("cat /opt/requirements.txt").splitlines()


def test_step_that_fails_is_shown_with_what_it_wrote_and_leaves_nothing(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    (site.directory / "Dockerfile").write_text(
        "ARG BASE_IMAGE\nFROM $BASE_IMAGE\nLABEL trainyard.test=failing\nRUN echo printed; echo and more >&2; exit 7\n"
    )
    assert site.run("build", "tiny") == 1
    error = capsys.readouterr().err
    assert "step 4 of 4, RUN echo printed; echo and more >&2; exit 7, failed with exit code 7." in error
    assert sorted(error.splitlines()[-2:]) == ["    and more", "    printed"]  # two streams: in either order
    assert site.engine.remaining("trainyard.test=failing") == []
    assert here(site, capsys) is False


def test_base_image_that_nobody_has_is_named(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    missing = "localhost:1/nowhere/base:1"
    assert site.run("build", "tiny", "--base-image", missing) == 1
    assert f"The base image {missing} of tiny is not available: " in capsys.readouterr().err
