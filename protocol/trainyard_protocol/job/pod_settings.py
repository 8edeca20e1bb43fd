"""Settings of pods: what a site's machine types file says of a cluster, and what of it a replica's pod gets.

A job has no say in any of this; what it may ask for itself is in `engine_options`.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from trainyard_protocol.job.config.yaml_file import SiteEntry
from trainyard_protocol.job.keys.engine_options import LABEL_VALUE, OBJECT_NAME, QUALIFIED_NAME
from trainyard_protocol.message import Many, Wire

_LabelKey = Annotated[str, StringConstraints(pattern=f"^{QUALIFIED_NAME}$")]
_TaintKey = Annotated[str, StringConstraints(pattern=f"^({QUALIFIED_NAME})?$")]
_LabelValue = Annotated[str, StringConstraints(pattern=f"^{LABEL_VALUE}$")]
_Name = Annotated[str, StringConstraints(pattern=f"^{OBJECT_NAME}$")]
_Resource = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9._-]{1,63}$")]
_User = Annotated[int, Field(ge=1, lt=2**31)]


class PodToleration(Wire):
    """Taints of nodes on which a pod may run; as in Kubernetes, "" is any key or effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSettings(Wire):
    """Settings of a replica's pod by the site. `accelerator_resource` is what a cluster calls its accelerators;
    `run_as_user` None: the image's own user."""

    accelerator_resource: str = "nvidia.com/gpu"
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: Many[PodToleration] = ()
    priority_class: str = ""
    image_pull_secrets: Many[str] = ()
    run_as_user: int | None = None
    runtime_class: str = ""


class TolerationEntry(SiteEntry):
    key: _TaintKey = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: _LabelValue = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: int | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError("with operator Exists there is no value")
        if self.operator == "Equal" and not self.key:
            raise ValueError("without a key the operator must be Exists")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError("tolerationSeconds goes with effect NoExecute only")
        return self


class AcceleratorNodes(SiteEntry):
    """The resource by which a pod asks for an accelerator, and labels of the nodes that have this type."""

    resource: _Resource = "nvidia.com/gpu"
    node_selector: dict[_LabelKey, _LabelValue] = Field(default_factory=dict)


class KubernetesPart(SiteEntry):
    """The entry `kubernetes` of a machine type, or of all. `accelerators` has nodes by accelerator type."""

    node_selector: dict[_LabelKey, _LabelValue] = Field(default_factory=dict)
    tolerations: list[TolerationEntry] = Field(default_factory=list)
    priority_class_name: _Name | None = None
    image_pull_secrets: list[_Name] = Field(default_factory=list)
    run_as_user: _User | None = None
    runtime_class_name: _Name | None = None
    accelerators: dict[str, AcceleratorNodes] = Field(default_factory=dict)

    def overridden_by(self, other: "KubernetesPart") -> "KubernetesPart":
        """These settings, with each that the other one has in its place."""
        return self.model_copy(update={name: getattr(other, name) for name in other.model_fields_set})

    def settings(self, accelerator_type: str) -> PodSettings:
        """Those of a replica with accelerators of this type ("": none)."""
        by_type = {name.upper(): nodes for name, nodes in self.accelerators.items()}
        nodes = by_type.get(accelerator_type.upper(), AcceleratorNodes())
        return PodSettings(
            accelerator_resource=nodes.resource,
            node_selector={**self.node_selector, **nodes.node_selector},
            tolerations=tuple(PodToleration(**toleration.model_dump()) for toleration in self.tolerations),
            priority_class=self.priority_class_name or "",
            image_pull_secrets=tuple(self.image_pull_secrets),
            run_as_user=self.run_as_user,
            runtime_class=self.runtime_class_name or "",
        )
