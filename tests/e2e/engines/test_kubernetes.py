"""A job on a cluster that waits for commands, with a real server, agent and Kubernetes."""

import os
import re
from pathlib import Path

import pytest

from beds.kubernetes.bed import BASE_IMAGE, Bed
from beds.programs import Programs
from trainyard_agent.engines.kubernetes.api.access import RULES

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_code_is_synchronised_into_a_pod_which_ends_when_it_is_idle(kubernetes: Bed, tmp_path: Path) -> None:
    with Programs(tmp_path).ending() as operator:
        operator.server(roles={"admin": "admin", "agent": "agent"})
        operator.ok("trainyard", "login", operator.url, "--token-file", str(operator.token("admin")))
        kubeconfig = str(kubernetes.with_role(f"dev-{os.getpid()}", RULES))
        operator.agent("--name", "bed", "--runtime", "kubernetes", "--kubeconfig", kubeconfig, "--pool", "1x2x8")
        code = tmp_path / "code"
        code.mkdir()
        (code / "train.py").write_text("print('by the pod')\n")
        machine = ("--scale-tier", "custom", "--master-machine-type", "local-1", "--master-image-uri", BASE_IMAGE)
        dev = ("jobs", "dev", "waits", *machine, "--idle", "20s", "--package-path", str(code))
        place = re.search(r"changed: (/\S+)$", operator.done("trainyard", *dev).stderr, re.MULTILINE)
        assert place is not None
        run = ("jobs", "exec", "waits", "--", "python3", f"{place[1]}/train.py")
        assert operator.ok("trainyard", *run) == "by the pod\n"
        log = operator.done("trainyard", "jobs", "stream-logs", "waits").stdout
        assert "Nothing used it for 20 s: it ends." in log
