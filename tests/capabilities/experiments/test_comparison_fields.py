"""Fields of jobs beside each other."""

from typing import Any

from trainyard_protocol.answers.origin import OriginSummary
from trainyard_protocol.wire.observations import ResolvedRun
from trainyard_server.capabilities.experiments.comparison_fields import fields_of

SHA = "a" * 64


def fields(origin: OriginSummary | None = None, resolved: ResolvedRun | None = None, **given: Any) -> dict[Any, str]:
    return dict(fields_of(given, {"team": "vision"}, origin, resolved))


def test_fields_are_named_by_where_they_are_from() -> None:
    origin = OriginSummary(commit="3f2a1c9" * 5, branch="", has_git=True, dirty=True, changed=2, untracked=1)
    resolved = ResolvedRun(images={"master": "x@sha256:1"}, requirements="numpy==2.0\nkeras==3.1")
    described = fields(
        origin,
        resolved,
        scaleTier="CUSTOM",
        args=["--lr", "1"],
        masterConfig={"imageUri": "a:1", "diskConfig": {"bootDiskSizeGb": 5}},
        packageUris=[f"staging://{SHA}/t.tar.gz", "gs://b/t.tar.gz"],
        env={"SEED": "1\n2"},
    )
    assert described == {
        ("config", "scaleTier"): "CUSTOM",
        ("config", "masterConfig.imageUri"): "a:1",
        ("config", "masterConfig.diskConfig.bootDiskSizeGb"): "5",
        ("config", "label team"): "vision",
        ("config", "package 1"): f"t.tar.gz (SHA-256 {SHA[:12]})",
        ("config", "package 2"): "gs://b/t.tar.gz",
        ("origin", "commit"): "3f2a1c93f2a1",
        ("origin", "branch"): "detached HEAD",
        ("origin", "uncommitted changes"): "2 changed, 1 untracked",
        ("environment", "variable SEED"): "1\N{REPLACEMENT CHARACTER}2",
        ("environment", "image master"): "x@sha256:1",
        ("environment", "numpy"): "2.0",
        ("environment", "keras"): "3.1",
    }
    assert fields(OriginSummary()) == {("config", "label team"): "vision"}
    assert len(fields(pythonModule="x" * 5000)["config", "pythonModule"]) == 301
