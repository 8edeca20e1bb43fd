"""Checks of the namespace of a Kubernetes cluster: whether it answers, the agent's permissions, objects of nobody."""

import shlex
from collections.abc import Iterator

from trainyard_agent.engines.kubernetes.api.access import RULES
from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeError, KubeObject
from trainyard_agent.engines.kubernetes.capacity.admission import NotAdmitted, choose
from trainyard_agent.engines.kubernetes.pods import objects
from trainyard_agent.engines.kubernetes.settings import KubernetesSettings
from trainyard_agent.runtimes.base import Orphan
from trainyard_protocol.answers.health import Finding


def findings(client: KubeClient, settings: KubernetesSettings) -> Iterator[Finding]:
    try:
        about = f"Kubernetes {client.version()} answers at {client.server}."
    except KubeError as error:
        yield Finding(
            check="kubernetes",
            status="problem",
            found=error.message,
            meaning="No run is started, stopped or observed. Pods continue.",
            advice="Check the kubeconfig and the network to the API server. The agent then continues automatically.",
        )
        return
    yield Finding(check="kubernetes", status="ok", found=about)
    try:
        yield from _settings(client, settings)
        yield _permissions(client)
    except KubeError as error:
        yield Finding(check="namespace", status="unknown", found=error.message)


def _settings(client: KubeClient, settings: KubernetesSettings) -> Iterator[Finding]:
    """Problems of a namespace or a queue that is not there: the agent does not start."""
    problems = []
    if client.lacks_namespace():
        problems.append(f"--namespace {client.namespace}: the cluster has no such namespace.")
    elif settings.local_queue:
        try:
            choose(client, settings.local_queue, {})
        except NotAdmitted as error:
            problems.append(str(error))
    for problem in problems:
        meaning, advice = "The agent does not start with this setting.", "Create it, or name an existing one."
        yield Finding(check="settings", status="problem", found=problem, meaning=meaning, advice=advice)


def _permissions(client: KubeClient) -> Finding:
    needed = [
        (verb, resource, rule["apiGroups"][0])
        for rule in RULES
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    missing = [f"{verb} {resource}" for verb, resource, group in needed if not client.may(verb, group, resource)]
    if not missing:
        found = f"The agent has its {len(needed)} permissions in the namespace {client.namespace}."
        return Finding(check="permissions", status="ok", found=found)
    return Finding(
        check="permissions",
        status="problem",
        found=f"The agent may not {', '.join(missing)} in the namespace {client.namespace}.",
        meaning="Runs are not started, or not ended and removed.",
        advice="Apply the Role of this version again: deploy/kubernetes/agent.yaml.",
    )


def orphans(client: KubeClient, agent_id: str, settings: KubernetesSettings) -> list[Orphan]:
    """The objects of the namespace whose run has no ConfigMap of this agent. Raises KubeError."""
    roots, pods = (client.list(kind, objects.RUN)[0] for kind in ("configmaps", "pods"))
    owned = {root["metadata"]["labels"][objects.RUN] for root in roots if _agent(root) == agent_id}
    there = {(object_["metadata"]["labels"][objects.RUN], _agent(object_)) for object_ in (*roots, *pods)}
    return [
        Orphan(
            f"set of objects in the namespace {client.namespace}",
            run_id,
            "the run is gone" if owner == agent_id else f"it is of another agent, {owner}",
            _removal(client.namespace, f"{objects.RUN}={run_id},{objects.AGENT}={owner}", settings),
        )
        for run_id, owner in sorted(there)
        if owner != agent_id or run_id not in owned
    ]


def _removal(namespace: str, selector: str, settings: KubernetesSettings) -> str:
    """The command that removes them, also their finalizers, which else an agent does."""
    chosen = ["--kubeconfig", str(settings.kubeconfig)] if settings.kubeconfig else []
    chosen += ["--context", settings.context] if settings.context else []
    kubectl, selected = shlex.join(["kubectl", *chosen, "-n", namespace]), shlex.join(["-l", selector])
    return (
        f"{kubectl} delete configmaps,services,secrets,pods {selected} --wait=false && "
        f"{kubectl} get pods {selected} -o name | "
        f'xargs -r -n1 {kubectl} patch --type merge -p \'{{"metadata":{{"finalizers":null}}}}\''
    )


def _agent(object_: KubeObject) -> str:
    return str(object_["metadata"]["labels"].get(objects.AGENT, ""))
