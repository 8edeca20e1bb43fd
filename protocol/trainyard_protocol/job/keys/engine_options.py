"""Engine options of a job: what it asks of Slurm or Kubernetes itself. Not of the v1 API.

An engine reads its own part alone; machines read none. What an operator lets jobs ask for is in `engine_allowance`.
"""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from trainyard_protocol.errors import quoted
from trainyard_protocol.fields import Boolean, Int32, Text, kind_of, validation_error
from trainyard_protocol.message import Message

MAX_ENTRIES = 20
"""Entries of a list or a mapping of options."""

MAX_LINE = 1000
"""Characters of a line of `setup`, and of the value of an annotation."""

QUALIFIED_NAME = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
"""A key of labels and annotations in Kubernetes."""

LABEL_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
OBJECT_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
RESOURCE_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9._-]{1,63}"
CAPABILITY = r"[A-Z][A-Z_]{1,40}"

_WORD = r"[A-Za-z0-9_.@+-]{1,100}"
_CONSTRAINT = r"[A-Za-z0-9_.@+&|*,:()\[\]-]{1,500}"
_OWN_DOMAINS = ("trainyard.dev", "kubernetes.io", "k8s.io")


def _matching(pattern: str, words: str) -> AfterValidator:
    def check(value: str) -> str:
        if value and not re.fullmatch(pattern, value):
            raise validation_error(f"must be {words}; this is {quoted(value)}.")
        return value

    return AfterValidator(check)


def _few(value: object) -> object:
    if isinstance(value, list | tuple | Mapping) and len(value) > MAX_ENTRIES:
        raise validation_error(f"may have at most {MAX_ENTRIES} entries; it has {len(value)}.")
    return value


def _keyed(value: object, pattern: str, words: str) -> Mapping[str, object]:
    """A mapping with few keys, each of them as the pattern says."""
    if not isinstance(value, Mapping):
        raise validation_error(f"must be a mapping of names to values; this is {kind_of(value)}.")
    _few(value)
    for key in value:
        if not isinstance(key, str) or not re.fullmatch(pattern, key):
            raise validation_error(f"has the key {quoted(key)}; a key is {words}.")
    return value


def _labels(value: object) -> object:
    mapping = _keyed(value, QUALIFIED_NAME, "a name such as team or example.com/team")
    for key, text in mapping.items():
        if not isinstance(text, str) or not re.fullmatch(LABEL_VALUE, text):
            words = "a value is a string of at most 63 letters, digits, '-', '_' and '.'"
            raise validation_error(f"has {quoted(text)} for {key}; {words}.")
    return mapping


def _own_labels(value: object) -> object:
    return _outside(_labels(value))


def _own_annotations(value: object) -> object:
    mapping = _keyed(value, QUALIFIED_NAME, "a name such as example.com/team")
    for key, text in mapping.items():
        if not isinstance(text, str) or len(text) > MAX_LINE or not text.isprintable():
            words = f"a value is a string of at most {MAX_LINE} characters on one line"
            raise validation_error(f"has {quoted(text)} for {key}; {words}.")
    return _outside(mapping)


def _outside(mapping: object) -> object:
    """Refuse keys that the cluster or the service sets."""
    for key in mapping if isinstance(mapping, Mapping) else ():
        domain = str(key).partition("/")[0] if "/" in str(key) else ""
        if own := next((name for name in _OWN_DOMAINS if f".{domain}".endswith((f".{name}", f"-{name}"))), ""):
            raise validation_error(f"has the key {quoted(key)}; keys below {own} are not a job's to set.")
    return mapping


def _amounts(value: object) -> object:
    return _keyed(value, RESOURCE_NAME, "the name of an extended resource, such as rdma/hca")


def _amount(value: int) -> int:
    if not 1 <= value <= 1000:
        raise validation_error(f"must be between 1 and 1000; this is {value}.")
    return value


def _line(value: str) -> str:
    if not value.strip() or len(value) > MAX_LINE or not value.replace("\t", " ").isprintable():
        raise validation_error(
            f"must be a command of a shell on one line of at most {MAX_LINE} characters; this is {quoted(value)}."
        )
    return value


_Named = Annotated[Text, _matching(_WORD, "a name of letters, digits and _.@+-")]
_Name = Annotated[Text, _matching(OBJECT_NAME, "the name of an object in the cluster")]


class SlurmOptions(Message):
    """Options of the job of Slurm; "" is what the agent or the site chooses. `exclusive`: whole nodes. `setup`: lines
    of bash, which run before the programs; these get the variables that the lines change."""

    account: _Named = ""
    qos: _Named = ""
    constraint: Annotated[Text, _matching(_CONSTRAINT, "features of nodes, such as a100 or a100|h100")] = ""
    reservation: _Named = ""
    exclusive: Boolean = False
    setup: Annotated[tuple[Annotated[Text, AfterValidator(_line)], ...], BeforeValidator(_few)] = ()


class KubernetesOptions(Message):
    """Options of the pods of all replicas. `resources`: extended resources of each, beside its machine type's.
    `queue`: the LocalQueue of Kueue."""

    labels: Annotated[dict[str, str], BeforeValidator(_own_labels)] = Field(default_factory=dict)
    annotations: Annotated[dict[str, str], BeforeValidator(_own_annotations)] = Field(default_factory=dict)
    node_selector: Annotated[dict[str, str], BeforeValidator(_labels)] = Field(default_factory=dict)
    service_account: _Name = ""
    resources: Annotated[dict[str, Annotated[Int32, AfterValidator(_amount)]], BeforeValidator(_amounts)] = Field(
        default_factory=dict
    )
    capabilities: Annotated[
        tuple[Annotated[Text, _matching(CAPABILITY, "a capability such as IPC_LOCK")], ...], BeforeValidator(_few)
    ] = ()
    queue: _Name = ""


class EngineOptions(Message):
    slurm: SlurmOptions = SlurmOptions()
    kubernetes: KubernetesOptions = KubernetesOptions()
