"""The fixtures of container tests: their base image, and that what a test leaves in an engine is reported."""

import uuid

from beds.engines import Engine

LABEL = "trainyard-test-fixtures"


def test_base_image_runs_python_and_installs_offline(engine: Engine) -> None:
    script = "python3 -c 'import setuptools, pip, wheel' && python3 -m venv /v && /v/bin/pip --version"
    printed = engine.client().containers.run(engine.base_image, ["sh", "-c", script], remove=True)
    assert b"from /v/lib" in printed


def test_leftovers_are_told_by_kind_and_name(engine: Engine) -> None:
    client = engine.client()
    labels = {LABEL: uuid.uuid4().hex}
    label = f"{LABEL}={labels[LABEL]}"
    container = client.containers.create(engine.base_image, ["true"], labels=labels)
    network = client.networks.create(f"network-{labels[LABEL]}", labels=labels)
    volume = client.volumes.create(f"volume-{labels[LABEL]}", labels=labels)
    try:
        assert engine.remaining(label) == [
            f"container {container.name} (created)",
            f"network {network.name}",
            f"volume {volume.name}",
        ]
        assert set(engine.remaining(label)) <= set(engine.remaining())
    finally:
        container.remove()
        network.remove()
        volume.remove()
    assert engine.remaining(label) == []
