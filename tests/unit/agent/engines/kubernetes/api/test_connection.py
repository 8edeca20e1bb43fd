"""Kubeconfigs: what is read, what is refused, and tokens that are replaced."""

import json
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from beds.fake_cluster import fake_cluster
from trainyard_agent.engines.kubernetes.api.client import KubeDown, KubeRefused
from trainyard_agent.engines.kubernetes.api.connection import BadKubeconfig, connect

PLUGIN = """#!/bin/sh
echo called >> "$(dirname "$0")/calls"
echo '{"status": {"token": "'"$PREFIX"'-1", "expirationTimestamp": "2020-01-01T00:00:00Z"}}'
"""


def kubeconfig(directory: Path, user: dict[str, Any], **cluster: Any) -> Path:
    path = directory / "config"
    one = {"server": "https://example.invalid:6443", **cluster}
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "jobs"}}],
        "clusters": [{"name": "k", "cluster": one}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def authorization(auth: httpx.Auth | None) -> str:
    assert auth is not None
    request = httpx.Request("GET", "https://example.invalid")
    return str(next(auth.sync_auth_flow(request)).headers["Authorization"])


def test_plugin_of_a_kubeconfig_gives_a_token_each_time_the_last_has_expired(tmp_path: Path) -> None:
    program = tmp_path / "plugin"
    program.write_text(PLUGIN)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./plugin",
        "env": [{"name": "PREFIX", "value": "token"}],
    }
    connection = connect(kubeconfig(tmp_path, {"exec": plugin}))
    assert connection.namespace == "jobs"
    assert [authorization(connection.auth) for _ in range(2)] == ["Bearer token-1"] * 2
    assert (tmp_path / "calls").read_text().count("called") == 2


@pytest.mark.parametrize(
    ("user", "cluster", "message"),
    [
        ({}, {"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify is refused"),
        ({}, {"server": "http://example.invalid"}, "is not https"),
        ({"username": "u", "password": "p"}, {}, "password authentication was removed"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1"}}, {}, "the apiVersion must be one of"),
        ({"client-certificate": "none.pem", "client-key": "none.pem"}, {}, "No such file"),
    ],
)
def test_kubeconfig_that_is_not_safe_or_not_whole_is_refused(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadKubeconfig, match=message):
        connect(kubeconfig(tmp_path, user, **cluster))


def test_context_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(BadKubeconfig, match=r"no context 'other' \(there is: c\)"):
        connect(kubeconfig(tmp_path, {}), "other")
    (tmp_path / "config").write_text(json.dumps({"clusters": "x"}))
    with pytest.raises(BadKubeconfig):
        connect(tmp_path / "config")


def test_token_that_is_replaced_in_its_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    auth = connect(kubeconfig(tmp_path, {"tokenFile": "token"})).auth
    with fake_cluster() as api, closing(api.client(auth)) as client:
        api.token = "first"
        assert client.get("pods", "one") is None
        api.token = "second"
        file.write_text("second")
        assert client.get("pods", "one") is None

        api.token = "third"
        with pytest.raises(KubeRefused, match="Unauthorized"):
            client.get("pods", "one")
        file.unlink()
        with pytest.raises(KubeDown, match="token"):
            client.get("pods", "one")
        file.write_text("third")
        assert client.get("pods", "one") is None
