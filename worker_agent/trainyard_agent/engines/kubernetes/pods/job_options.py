"""Options of a job on its pods, beside what the service and the site have set, which win. Pure."""

from typing import Any

from trainyard_protocol.job.keys.engine_options import KubernetesOptions


def with_options(pod: dict[str, Any], options: KubernetesOptions) -> dict[str, Any]:
    """The pod with the options. A service account's token is mounted, which no other pod has."""
    metadata, spec = pod["metadata"], dict(pod["spec"])
    main, *others = spec["containers"]
    spec["containers"] = [_with_rights(main, options), *others]
    if selector := {**options.node_selector, **spec.get("nodeSelector", {})}:
        spec["nodeSelector"] = selector
    if options.service_account:
        spec |= {"serviceAccountName": options.service_account, "automountServiceAccountToken": True}
    labels, annotations = options.labels, options.annotations
    metadata = {
        **metadata,
        "labels": {**labels, **metadata["labels"]},
        "annotations": {**annotations, **metadata["annotations"]},
    }
    return {**pod, "metadata": metadata, "spec": spec}


def _with_rights(container: dict[str, Any], options: KubernetesOptions) -> dict[str, Any]:
    """The container of the program with extended resources, whose limits equal their requests, and capabilities."""
    security = container["securityContext"]
    capabilities = security["capabilities"]
    added = [*capabilities.get("add", ()), *options.capabilities]
    return {
        **container,
        "resources": {
            kind: {**{name: str(count) for name, count in options.resources.items()}, **amounts}
            for kind, amounts in container["resources"].items()
        },
        "securityContext": {
            **security,
            "capabilities": {**capabilities, **({"add": list(dict.fromkeys(added))} if added else {})},
        },
    }
