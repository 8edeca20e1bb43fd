"""Nodes and partitions of a site, and settings of the agent that name what the site does not have."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from beds.open_engines import agent_settings
from trainyard_agent.engines.contract import SettingsRefused
from trainyard_agent.engines.slurm import commands, doctor, site
from trainyard_agent.engines.slurm.commands import SlurmError
from trainyard_agent.engines.slurm.engine import ENGINE, parse_nodes
from trainyard_agent.engines.slurm.settings import SlurmSettings
from trainyard_agent.engines.slurm.spec import SlurmDefaults
from trainyard_agent.settings import AgentSettings
from trainyard_protocol.job.resources import Pool

_ACCOUNT = "Invalid account or account/partition combination specified"
_QOS = "Invalid qos specification"
_REFUSES = "Slurm refuses it (sbatch: "
SINFO = "main*|infinite\ngpu|2-00:00:00\nbrief|1:00\n"


def answering(monkeypatch: pytest.MonkeyPatch, refusal: str = "", known: str = "") -> None:
    """Let Slurm's commands answer so: sbatch with a refusal, sacctmgr with what it lists."""

    def run(command: Sequence[str], text: str = "") -> str:
        if command[0] == "sbatch" and refusal and "--version" not in command:
            raise SlurmError(0, f"sbatch: {refusal}")
        if command[0] == "sacctmgr" and not known:
            raise SlurmError(0, "sacctmgr: accounting storage is disabled")
        return {"sinfo": SINFO, "sacctmgr": known}.get(command[0], "")

    monkeypatch.setattr(commands, "run", run)


def test_time_limit_is_that_of_the_chosen_partition_or_of_the_default() -> None:
    there = site.parse_partitions(SINFO)
    limits = {"": float("inf"), "gpu": 172_800.0, "brief": 60.0, "gpu,brief": 60.0, "gone": float("inf")}
    assert {chosen: site.longest_s(there, chosen) for chosen in limits} == limits


@pytest.mark.parametrize(
    ("settings", "refusal", "known", "says"),
    [
        (SlurmDefaults("gpu,main", "a", "q"), "", "", ""),
        (SlurmDefaults("gpux"), "", "", "partition gpux: Slurm has no partition gpux. There are: main (the default),"),
        (SlurmDefaults("main", "a"), _ACCOUNT, "vision\nspeech\n", f"account a: {_REFUSES}{_ACCOUNT}). There are: s"),
        (SlurmDefaults(qos="q"), _QOS, "normal,high\n", f"qos q: {_REFUSES}{_QOS}). There are: high, normal."),
        (SlurmDefaults(qos="q"), _QOS, "", f"qos q: {_REFUSES}{_QOS})."),
        (SlurmDefaults(qos="q"), "Requested nodes are busy", "", ""),
    ],
)
def test_setting_that_names_what_is_not_there_is_a_problem_with_what_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: SlurmDefaults, refusal: str, known: str, says: str
) -> None:
    """The agent does not start with it, and the doctor has the same words."""
    answering(monkeypatch, refusal, known)
    found = list(site.problems(settings))
    assert len(found) == bool(says)
    assert all(problem.startswith(f"--slurm-{says}") for problem in found), found
    findings = doctor.findings(tmp_path, lambda: 1, settings)
    assert [one.found for one in findings if (one.check, one.status) == ("settings", "problem")] == found
    slurm = SlurmSettings(tmp_path, settings.partition, settings.account, settings.qos)
    if found:
        with pytest.raises(SettingsRefused) as refused:
            ENGINE.capacity(AgentSettings(state_dir=tmp_path, parts=(slurm,)))
        assert str(refused.value) == found[0]


NODES = """\
n1|64|257000|gpu:a100:8(S:0-1),shard:32|mix
n1|64|257000|gpu:a100:8(S:0-1),shard:32|mix
n2|64|257000|gpu:a100:8(S:0-1)|alloc
c1|32|128000|(null)|idle*
c2|32|128000|(null)|drain
c3|32|128000|gpu:4|idle
"""


def test_usable_nodes_are_pools_whoever_uses_them() -> None:
    nodes = parse_nodes(NODES)
    a100 = "NVIDIA_TESLA_A100"
    assert nodes.capacity.pools == (
        Pool(nodes=2, vcpus=64, memory_bytes=257000 << 20, accelerator_type=a100, accelerator_count=8),
        Pool(nodes=1, vcpus=32, memory_bytes=128000 << 20),
    )
    assert nodes.gres == {a100: "a100"}


def test_agent_on_a_login_node_needs_a_shared_directory_and_one_user(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    common = ["--server", "http://127.0.0.1:1", "--token-file", "t", "--state-dir", str(tmp_path)]
    for given, missing in (["--one-user"], "--shared-dir"), (["--shared-dir", "d"], "--one-user"):
        with pytest.raises(SystemExit):
            agent_settings(*common, "--runtime", "slurm", *given)
        assert missing in capsys.readouterr().err.rpartition("error:")[2]
    for command in "--doctor", "--stop-all":
        agent_settings("--state-dir", str(tmp_path), "--runtime", "slurm", "--shared-dir", "d", command)
