"""Packages for pods: what travels with the run, what pods download, and what is refused."""

import asyncio
import hashlib
import io
import json
import os
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from beds.run_ids import unique_run
from trainyard_agent.engines.kubernetes.staging.installation import Installation
from trainyard_agent.engines.kubernetes.staging.pod_job_dirs import PodJobDirs
from trainyard_agent.engines.kubernetes.staging.pod_packages import MOST, PodPackages, PodPackageSettings, no_images
from trainyard_agent.engines.kubernetes.staging.pod_stager import PodStager
from trainyard_agent.installer import container
from trainyard_agent.installer.output import NoAnswer
from trainyard_agent.runtimes.installing import PACKAGES
from trainyard_agent.staging.base import Staging
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_protocol.job.runtimes import RuntimeImage, Runtimes, RuntimeVersion, load_runtimes
from trainyard_protocol.states import Reason
from unit.agent.stub_server import StubServer

RUN = unique_run("1")
IMAGES = {"jax": RuntimeImage(image="registry/jax:1"), "built": RuntimeImage(image="b", dockerfile="/b.Dockerfile")}


def wheel(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("module.py", content)
    return file.getvalue()


SMALL = wheel(b"small")
TABLE = Runtimes(IMAGES, {"2.1": RuntimeVersion(cpu="jax"), "*": RuntimeVersion(cpu="built")}, runs_any=True)


class Packages:
    """A server with packages, and the stager of a cluster's agent."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.server = StubServer()

    def upload(self, name: str, content: bytes) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        self.server.packages[sha256] = content
        return f"staging://{sha256}/{name}"

    async def staged(
        self, *uris: str, version: str = "2.1", server: str = "https://trains", image: str = ""
    ) -> Staging:
        given = {"masterConfig": {"imageUri": image}} if image else {"runtimeVersion": version}
        self.server.order(RUN, packageUris=list(uris), **given)
        async with self._stager(server) as stager, asyncio.timeout(60):
            stager.begin(self.server.orders[RUN])
            while stager.status()[RUN].phase == "preparing":
                await asyncio.sleep(0.01)
            return stager.status()[RUN]

    @asynccontextmanager
    async def _stager(self, server: str) -> AsyncIterator[PodStager]:
        async with self.server.client() as client:
            packages = PodPackages(client, PackageFetcher(client, ""), PodPackageSettings(TABLE, server))
            stager = PodStager(self._root / "staging", PodJobDirs(), packages)
            try:
                yield stager
            finally:
                await stager.close()


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    return Packages(tmp_path)


async def test_small_packages_travel_with_the_run_and_large_ones_are_downloaded_and_checked(
    packages: Packages, tmp_path: Path
) -> None:
    small = packages.upload("small-1.whl", SMALL)
    staged = await packages.staged(small)
    assert (staged.phase, staged.images) == ("ready", {"": "registry/jax:1"}), staged.message
    installation, contents = Installation.read(Path(staged.packages))
    assert dict(zip(installation.files, contents, strict=True))["0/small-1.whl"] == SMALL

    content = wheel(os.urandom(MOST))
    staged = await packages.staged(packages.upload("large-1.whl", content), server="https://trains/")
    installation, contents = Installation.read(Path(staged.packages))
    assert sum(map(len, contents)) < 200_000
    (file,) = json.loads(dict(zip(installation.files, contents, strict=True))["plan.json"])["files"]
    assert (file["url"], file["path"]) == (f"https://trains/link/{file['sha256']}", "/tmp/packages/0/large-1.whl")
    fetched = tmp_path / "fetched" / "large.whl"
    with packages.server.listening() as url:
        there = {"path": str(fetched), "url": file["url"].replace("https://trains", url)}
        container.fetch({**file, **there}, None, 0)
        assert fetched.read_bytes() == content
        with pytest.raises(OSError, match=f"its SHA-256 is {file['sha256']}, not 0"):
            container.fetch({**file, **there, "sha256": "0"}, None, 0)
        with pytest.raises(OSError, match="404"):
            container.fetch({**file, **there, "url": f"{url}/link/nothing"}, None, 0)
        packages.server.down = True
        with pytest.raises(NoAnswer, match="the server has not answered for 0 s: HTTP Error 503"):
            container.fetch({**file, **there}, None, 0)


async def test_packages_of_a_job_with_an_image_are_installed_in_that_image(packages: Packages) -> None:
    staged = await packages.staged(packages.upload("small-1.whl", SMALL), image="team/torch:1")
    assert (staged.phase, staged.images) == ("ready", {"team/torch:1": "team/torch:1"}), staged.message
    assert staged.python == f"{PACKAGES}/bin/python"
    assert Installation.read(Path(staged.packages))[0].names == ("small-1.whl",)


async def test_large_package_needs_a_server_that_pods_reach(packages: Packages) -> None:
    large = packages.upload("large-1.whl", wheel(os.urandom(MOST)))
    failed = await packages.staged(large, server="http://127.0.0.1:8470")
    assert (failed.phase, failed.reason) == ("failed", Reason.PACKAGES_FAILED)
    assert failed.message == (
        "Its packages are too large for a ConfigMap (0.9 MB), so pods download them from the server, which they cannot "
        "reach at http://127.0.0.1:8470: the agent needs --server-url-for-pods URL."
    )


async def test_version_without_an_image_for_nodes_is_refused_by_name(packages: Packages) -> None:
    failed = await packages.staged(packages.upload("small-1.whl", SMALL), version="3.0")
    assert (failed.phase, failed.reason) == ("failed", Reason.IMAGE_FAILED)
    assert failed.message.startswith(
        "The runtimes file of the cluster's agent has no image for its runtimeVersion 3.0 that nodes can pull: b "
    )


def test_agent_without_any_image_for_nodes_offers_no_package_jobs() -> None:
    assert no_images(TABLE) == ""
    assert "names no image that nodes can pull" in no_images(load_runtimes())
