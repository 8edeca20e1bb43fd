"""Nodes of Slurm as pools, and the options of an agent on a login node."""

from pathlib import Path

import pytest

from beds.open_engines import agent_settings
from trainyard_agent.engines.slurm.engine import parse_nodes
from trainyard_protocol.job.resources import Pool

SINFO = """\
n1|64|257000|gpu:a100:8(S:0-1),shard:32|mix
n1|64|257000|gpu:a100:8(S:0-1),shard:32|mix
n2|64|257000|gpu:a100:8(S:0-1)|alloc
c1|32|128000|(null)|idle*
c2|32|128000|(null)|drain
c3|32|128000|gpu:4|idle
"""


def test_usable_nodes_are_pools_whoever_uses_them() -> None:
    nodes = parse_nodes(SINFO)
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
