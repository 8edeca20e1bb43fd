"""Checks of the namespace of a Kubernetes cluster: whether it answers, the agent's permissions, objects of nobody."""

from collections import Counter
from collections.abc import Iterator

from trainyard_agent.engines.kubernetes import coordination
from trainyard_agent.engines.kubernetes.api.access import RULES
from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeError, KubeObject
from trainyard_agent.engines.kubernetes.capacity.admission import NotAdmitted, choose
from trainyard_agent.engines.kubernetes.pods import objects
from trainyard_agent.engines.kubernetes.settings import KubernetesSettings
from trainyard_protocol.views.health import Finding


def findings(client: KubeClient, agent_id: str, settings: KubernetesSettings) -> Iterator[Finding]:
    """`agent_id`: that of the namespace's agent; "" if it has had none."""
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
        yield _acting(client, agent_id)
        yield from _orphans(client, agent_id)
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
        advice="Apply the Role of this version again: deploy/kubernetes/agent.yaml, or `trainyard agent manifest`.",
    )


def _acting(client: KubeClient, agent_id: str) -> Finding:
    spec = (client.get("leases", coordination.NAME) or {}).get("spec") or {}
    if not spec.get("holderIdentity"):
        return Finding(check="agent", status="ok", found=f"No agent acts in the namespace {client.namespace}.")
    found = f"{spec['holderIdentity']} acts as the agent {agent_id}, and said so last at {spec.get('renewTime')}."
    return Finding(check="agent", status="ok", found=found)


def _orphans(client: KubeClient, agent_id: str) -> Iterator[Finding]:
    roots, pods = (client.list(kind, objects.RUN)[0] for kind in ("configmaps", "pods"))
    owned = {pod["metadata"]["labels"][objects.RUN] for pod in roots if _agent(pod) == agent_id}
    lost = Counter((pod["metadata"]["labels"][objects.RUN], _agent(pod)) for pod in (*roots, *pods))
    lost = Counter({key: count for key, count in lost.items() if key[1] != agent_id or key[0] not in owned})
    if not lost:
        yield Finding(check="orphans", status="ok", found=f"All objects are of {len(owned)} runs of the agent.")
    for (run_id, owner), count in sorted(lost.items()):
        whose = f"another agent, {owner}" if owner != agent_id else "a run that is gone"
        chosen, kubectl = f"-l {objects.RUN}={run_id}", f"kubectl -n {client.namespace}"
        yield Finding(
            check="orphans",
            status="problem",
            found=f"{count} objects of the run {run_id} are of {whose}.",
            meaning="Their pods may hold CPUs, memory and devices, and nobody ends them.",
            advice=f"`{kubectl} delete configmaps,services,secrets,pods {chosen} --wait=false`, then for each pod "
            f'`{kubectl} patch pod NAME --type merge -p \'{{"metadata":{{"finalizers":null}}}}\'`.',
        )


def _agent(object_: KubeObject) -> str:
    return str(object_["metadata"]["labels"].get(objects.AGENT, ""))
