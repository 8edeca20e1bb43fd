"""deploy/kubernetes-site in a cluster: a server and an agent that find each other, and a job in pods."""

from pathlib import Path

import pytest
import yaml

from beds.certificates import Authority
from beds.kubernetes.agent_image import SITE_IMAGE, site_image
from beds.kubernetes.bed import BASE_IMAGE, Bed
from beds.kubernetes.kustomize import container, named, objects
from beds.programs import Programs
from beds.waiting import until
from e2e.harness import local

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SERVER, AGENT, HOST = "trainyard-server", "trainyard-agent", "trainyard-server.trainyard-server.svc"


def site() -> str:
    """The objects with the image of the bed, which has neither volumes to claim nor addresses of Services."""
    made = objects("kubernetes-site")
    server, agent = named(made, "StatefulSet", SERVER), named(made, "Deployment", AGENT)
    for workload in server, agent:
        container(workload)["image"] = SITE_IMAGE
    del server["spec"]["volumeClaimTemplates"]
    server["spec"]["template"]["spec"]["volumes"].append({"name": "data", "emptyDir": {}})
    named(made, "Service", SERVER)["spec"]["clusterIP"] = "None"
    return yaml.safe_dump_all(made)


def test_site_of_a_cluster_runs_a_job(kubernetes: Bed, tmp_path: Path) -> None:
    operator = Programs(tmp_path)
    operator.environment["KUBECONFIG"] = str(kubernetes.admin)
    kubectl = str(kubernetes.kubectl)
    secret = (kubectl, "-n", SERVER, "create", "secret")
    authority = Authority(tmp_path)
    issued = authority.issue(HOST)
    admin, agent = operator.token("admin"), operator.token("agent")
    (tmp_path / "site.yaml").write_text(site())
    inside = {"imageUri": BASE_IMAGE, "containerCommand": ["sh", "-c", "echo trained in a pod"]}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"trainingInput": local(masterConfig=inside)}))
    client = (
        *(kubectl, "-n", "trainyard", "exec", "deployment/trainyard-agent", "--", "env", "HOME=/state"),
        *(f"TRAINYARD_SERVER=https://{HOST}:8470", "TRAINYARD_CA_FILE=/etc/trainyard/ca.pem"),
        f"TRAINYARD_TOKEN={admin.read_text().strip()}",
        *("python3", "-m", "trainyard_cli"),
    )
    with site_image() as image:
        kubernetes.add(image)
        operator.ok(kubectl, "apply", "-f", "site.yaml")
        try:
            operator.ok(
                *secret,
                "generic",
                "trainyard-server-tokens",
                f"--from-file=admin={admin}",
                f"--from-file=agent={agent}",
            )
            operator.ok(*secret, "tls", "trainyard-server-tls", f"--cert={issued.certificate}", f"--key={issued.key}")
            files = (f"--from-file=token={agent}", f"--from-file=ca.pem={authority.ca_file}")
            operator.ok(kubectl, "-n", "trainyard", "create", "secret", "generic", "trainyard-agent-token", *files)
            until(
                lambda: "alive" in operator.run(*client, "agents", "list").stdout,
                lambda: (
                    operator.run(kubectl, "get", "pods", "-A").stdout
                    + operator.run(kubectl, "-n", SERVER, "logs", "trainyard-server-0").stdout
                ),
            )
            config = (tmp_path / "job.yaml").read_text()
            submit = ("jobs", "submit", "training", "first", "--config", "/state/job.yaml", "--stream-logs")
            operator.ok(*client[:7], "sh", "-c", f"cat > /state/job.yaml <<'END'\n{config}\nEND")
            assert "trained in a pod" in operator.done(*client, *submit).stderr
        finally:
            operator.run(kubectl, "-n", "trainyard", "delete", "pods", "--all", "--wait=false")
            operator.run(kubectl, "delete", "namespace", SERVER, "trainyard")
