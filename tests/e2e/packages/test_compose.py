"""The page of Docker Compose, typed as it is written on a real engine: only what it pulls has stand-ins."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker.errors
import pytest

from beds.engines import Engine
from beds.installed import compose
from beds.installed.missing import needing, skip_without
from beds.programs import BIN
from beds.site import pages
from e2e.harness import REPOSITORY
from support.addresses import free_ports
from trainyard_agent.engines.docker.client import DockerClient

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.containers]

PAGE = pages.DOCS / "how-to" / "server.md"
PULLED = "python:3.11-slim"
MADE = ("trainyard/runtime-jax-cpu:0.2", "trainyard/trainer:latest")
PORTS = {"SERVER_PORT": "8470", "STORAGE_PORT": "4443"}
"""Those of the page, which may be in use on this machine."""

CERTIFICATES = "docker/ca-bundle.crt"


class Site:
    """A checkout on a machine with an engine, and a shell there."""

    def __init__(self, engine: Engine, root: Path) -> None:
        self.engine = engine
        self.checkout = root / "checkout"
        self.tag = f"test-{uuid.uuid4().hex[:8]}"
        with closing(DockerClient(engine.url)) as client:
            bridge = client.gateway()
        self.ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        home = root / "home"
        home.mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("TRAINYARD_", "STORAGE_"))},
            **engine.environment,
            **self.ports,
            "HOME": str(home),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "DOCKER_CONFIG": str(compose.configuration(root / "docker")),
            "COMPOSE_PROJECT_NAME": self.tag,
            "DOCKER_SOCKET": engine.url.removeprefix("unix://"),
            "TRAINYARD_DIR": str(root / "trainyard"),
            "TRAINYARD_TAG": self.tag,
            "POSTGRES_TAG": self.tag,
            "BRIDGE_ADDRESS": bridge,
            "COLUMNS": "200",
        }
        trusted = os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT")
        if trusted:
            self.environment["CA_BUNDLE"] = trusted
        self._copy_checkout(trusted)

    def type(self, *commands: str) -> subprocess.CompletedProcess[str]:
        """Commands in one bash, which ends at the first that fails, with the ports of this site."""
        script = "\n".join(["set -eo pipefail", *commands])
        for name, port in PORTS.items():
            script = script.replace(f"127.0.0.1:{port}", f"127.0.0.1:{self.ports[name]}")
        return subprocess.run(
            ["bash", "-c", script],
            cwd=self.checkout,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1800,
            check=False,
        )

    def close(self) -> None:
        self.type("docker compose down --volumes --remove-orphans")
        client = self.engine.client()
        for container in client.containers.list(all=True, filters={"label": "trainyard.agent"}):
            container.remove(force=True, v=True)
        ours = (f"{image}:{self.tag}" for image in ("trainyard/server", "trainyard/agent", "postgres"))
        for name in (*MADE, PULLED, *ours):
            try:
                client.images.remove(name, force=True)
            except docker.errors.ImageNotFound:
                continue
        client.images.prune({"dangling": True})

    def _copy_checkout(self, trusted: str | None) -> None:
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
        for name in names:
            if (REPOSITORY / name).is_file():
                (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(REPOSITORY / name, self.checkout / name)
        if trusted:
            shutil.copy(trusted, self.checkout / CERTIFICATES)


@pytest.fixture
def site(engine: Engine, tmp_path: Path) -> Iterator[Site]:
    tags = {tag for image in engine.client().images.list() for tag in image.tags}
    if tags & {*MADE, PULLED}:
        skip_without(f"the container engine has {tags & {*MADE, PULLED}}, which the page would replace")
    with needing(compose.NoCompose):
        site = Site(engine, tmp_path)
    try:
        engine.client().images.get(engine.base_image).tag(*PULLED.split(":"))
        compose.build_postgres(engine, f"postgres:{site.tag}")
        yield site
    finally:
        site.close()


def test_page_of_compose_starts_a_service_that_trains_and_keeps_its_model(site: Site) -> None:
    mark = "shown by tests/e2e/packages/test_compose.py::test_page_of_compose_starts_a_service"
    blocks = [block for block in pages.blocks(PAGE) if block.mark.startswith(mark)]
    done = site.type(*(f"echo '<<< {block.line}'\n{block.text}" for block in blocks))
    assert done.returncode == 0, done.stdout
    _, first, alice, storage = done.stdout.split("<<< ")
    assert "The replica worker 0 completed." in first, first
    assert "Job completed successfully." in first
    assert "model/" in first.rpartition("Job completed successfully.")[2]
    assert "first" in alice.splitlines()[-1]
    assert "SUCCEEDED" in alice.splitlines()[-1]
    assert '"name": "custom-image/model' in storage
    left = site.engine.remaining(f"com.docker.compose.project={site.tag}")
    assert [found for found in left if not found.startswith("volume ")] == []
