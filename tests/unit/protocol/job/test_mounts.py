"""The operator's file of mounts."""

from pathlib import Path

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.mounts import load_mounts


def test_volumes_of_pods_are_a_claim_with_a_path_in_it_or_a_directory_of_nodes(tmp_path: Path) -> None:
    file = tmp_path / "mounts.yaml"
    file.write_text(
        "mounts:\n"
        "- {name: a, persistentVolumeClaim: datasets, subPath: imagenet/v2}\n"
        "- {name: b, persistentVolumeClaim: datasets}\n"
        "- {name: c, hostPath: /data}\n"
    )
    site = load_mounts(file)
    assert [mount.source for mount in site.mounts.values()] == ["datasets/imagenet/v2", "datasets", "/data"]
    assert all(mount.is_of_pods for mount in site.mounts.values())
    assert site.caches is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mounts:\n- name: a\n", ":2: mounts.0: it needs one of path, persistentVolumeClaim and hostPath."),
        ("mounts:\n- {name: a, path: /a, hostPath: /a}\n", ":2: mounts.0: it needs one of path"),
        ("mounts:\n- {name: a, path: /a, subPath: b}\n", ":2: mounts.0: subPath goes with persistentVolumeClaim."),
        ("mounts:\n- name: a\n  path: data\n", ":3: mounts.0.path: must be an absolute path such as /data/imagenet."),
        ("mounts:\n- {name: a, path: /}\n", ":2: mounts.0.path: must be an absolute path"),
        ("mounts:\n- {name: a, path: /a/../b}\n", ":2: mounts.0.path: must be an absolute path"),
        ("mounts:\n- {name: a, persistentVolumeClaim: c, subPath: ../x}\n", "subPath: must be a path in the volume"),
        ("mounts:\n- {name: A, path: /a}\n", ":2: mounts.0.name: a name is a lower-case letter, then"),
        ("mounts:\n- {name: cache, path: /a}\n", "mounts.0.name: this is the name of the caches of projects."),
        ("mounts:\n- {name: a, path: /a}\n- {name: a, path: /b}\n", ":3: mounts.1: there is a mount a already."),
        ("mounts:\n- {name: a, path: /a, readonly: true}\n", "there is no such entry; allowed: path, "),
        ("caches: {path: /a, name: x}\n", ":1: caches.name: there is no such entry"),
        ("mounts:\n- {name: a, path: /a, projects: p}\n", ":2: mounts.0.projects: Input should be a valid list."),
        ("mounts: [\n", "is not YAML"),
    ],
)
def test_wrong_file_is_refused_with_line_and_entry(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "mounts.yaml"
    file.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        load_mounts(file)
    assert says in caught.value.message
    assert caught.value.message.startswith(f"{file}:")
