"""Training in containers: the template as an image, a chief and a worker, the model on gs://."""

import os
from collections.abc import Iterator
from contextlib import closing

import pytest
import yaml

from beds.engines import Engine
from e2e.harness import REPOSITORY, Service, started
from e2e.test_training import TEMPLATE, check_trained, predict
from trainyard_cli.local.state import LocalState
from trainyard_protocol.net.gcs import CloudStorage, split_url

RUNTIME, TRAINER = "trainyard-test/runtime-jax-cpu:1", "trainyard-test/trainer:1"


@pytest.fixture(scope="module")
def service(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with the runtime image built by `trainyard runtimes build`, under a name of its own."""
    root = tmp_path_factory.mktemp("trained")
    shipped = yaml.safe_load((REPOSITORY / "configs" / "runtimes.yaml").read_text())
    jax = {
        **shipped["images"]["jax-cpu"],
        "image": RUNTIME,
        "dockerfile": str(REPOSITORY / "configs" / shipped["images"]["jax-cpu"]["dockerfile"]),
    }
    table = root / "runtimes.yaml"
    table.write_text(yaml.safe_dump({"images": {"jax-cpu": jax}, "packageJobs": "container"}))
    for made in started(root, "--runtimes", str(table), runtime="auto", environment=engine.environment):
        trusted = os.environ.get("SSL_CERT_FILE", "")
        bundle = ("--ca-bundle", trusted) if trusted else ()
        base = ("--base-image", engine.base_image)
        made.ok("runtimes", "build", "jax-cpu", *base, *bundle, "--runtimes", str(table), timeout=900)
        engine.client().images.build(
            path=str(TEMPLATE), tag=TRAINER, buildargs={"BASE_IMAGE": RUNTIME}, rm=True, forcerm=True
        )
        yield made


def test_trainer_as_an_image_trains_on_two_containers_and_saves_to_gs(service: Service, engine: Engine) -> None:
    config = yaml.safe_load((REPOSITORY / "configs" / "custom-image.yaml").read_text())
    for task in ("masterConfig", "workerConfig"):
        config["trainingInput"][task]["imageUri"] = TRAINER
    path = service.work / "custom-image.yaml"
    path.write_text(yaml.safe_dump(config))

    output = service.train("tutorial", "--config", str(path), "--", "--epochs", "5")

    check_trained(output, 2)
    emulator = {"STORAGE_EMULATOR_HOST": LocalState(service.state_dir).storage_url()}
    bucket, _ = split_url(config["trainingInput"]["jobDir"])
    with closing(CloudStorage("The test", emulator["STORAGE_EMULATOR_HOST"]).client()) as client:
        names = [blob.name for blob in client.list_blobs(bucket)]
    assert any("custom-image/model" in name for name in names)
    assert not [name for name in names if "workertemp" in name]
    predict(service, config["trainingInput"]["jobDir"], **emulator)
    assert engine.remaining("trainyard.agent") == []


@pytest.mark.long
def test_quickstart_trains_in_the_image_of_its_runtime(service: Service) -> None:
    """The config is the one used without an engine."""
    config = str(REPOSITORY / "configs" / "quickstart.yaml")
    package = str(TEMPLATE / "trainer")
    service.train("quickstart", "--config", config, "--package-path", package, "--", "--epochs", "1")
    predict(service, str(service.job_dir("quickstart")))
