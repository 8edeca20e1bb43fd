"""The images of docker/Dockerfile, on a Debian of the tests: what they run, as whom, and when they are healthy."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainyard_protocol
from beds.engines import Engine
from beds.waiting import until
from e2e.harness import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.containers]

VERSION = trainyard_protocol.__version__
WRITABLE = {"/tmp": "", "/data": "uid=10001,gid=10001,mode=0700"}


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout's files, and the certificates that this machine trusts, for the build alone."""
    root = tmp_path_factory.mktemp("context")
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, root / name)
    trusted = os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT")
    if trusted:
        shutil.copy(trusted, root / "docker/ca-bundle.crt")
    return root


@pytest.fixture(scope="module", params=["server", "agent"])
def image(request: pytest.FixtureRequest, engine: Engine, context: Path) -> Iterator[Any]:
    arguments = {"BASE_IMAGE": engine.base_image}
    tag = f"trainyard-test/{request.param}:packages"
    made, _ = engine.client().images.build(
        path=str(context),
        dockerfile="docker/Dockerfile",
        target=request.param,
        tag=tag,
        buildargs=arguments,
        rm=True,
        forcerm=True,
    )
    yield made
    engine.client().images.remove(tag, force=True)
    engine.client().images.prune({"dangling": True})


def test_image_has_the_release_and_its_labels(engine: Engine, image: Any) -> None:
    name = image.tags[0]
    versions = engine.client().containers.run(name, entrypoint=["trainyard", "--version"], remove=True)
    assert versions.decode() == f"trainyard {VERSION}\n"
    usage = engine.client().containers.run(name, ["--help"], remove=True, user="10001", read_only=True)
    assert b"usage:" in usage
    assert image.labels["org.opencontainers.image.licenses"] == "Apache-2.0"


@pytest.mark.parametrize("image", ["server"], indirect=True)
def test_server_without_root_becomes_healthy_and_keeps_its_data(engine: Engine, image: Any) -> None:
    container = engine.client().containers.run(image.tags[0], detach=True, read_only=True, tmpfs=WRITABLE)
    try:

        def health() -> str:
            container.reload()
            return str(container.attrs["State"]["Health"]["Status"])

        until(lambda: health() != "starting", lambda: container.logs().decode())
        assert health() == "healthy", container.logs().decode()
        assert container.exec_run(["id", "-u"]).output == b"10001\n"
        assert b"trainyard.db" in container.exec_run(["ls", "/data"]).output
    finally:
        container.remove(force=True, v=True)
