"""Containers of Apptainer on the nodes: their command, their variables, and the words of failed pulls."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from contract.runtimes.runtime_labs import order
from trainyard_agent.engines.slurm import containers, pull, spec
from trainyard_agent.engines.slurm.containers import Bind
from trainyard_agent.engines.slurm.settings import SlurmSettings
from trainyard_agent.engines.slurm.stager import SlurmStager
from trainyard_agent.runtimes.base import Mount
from trainyard_agent.staging.base import Staging
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.states import Reason

CHIEF = "master-replica-0"


def test_program_follows_the_rules_of_docker() -> None:
    both: dict[str, object] = {"Entrypoint": ["python", "-m", "task"], "Cmd": ["--help"]}
    cases: list[tuple[dict[str, object], list[str], list[str], list[str]]] = [
        (both, [], [], ["python", "-m", "task", "--help"]),
        (both, [], ["--epochs", "3"], ["python", "-m", "task", "--epochs", "3"]),
        (both, ["sh"], [], ["sh"]),
        (both, ["sh", "-c"], ["exit"], ["sh", "-c", "exit"]),
        ({"Entrypoint": None, "Cmd": ["bash"]}, [], [], ["bash"]),
        ({"Cmd": ["bash"]}, [], ["ls"], ["ls"]),
        ({}, [], [], []),
    ]
    found = {str(case[:3]): containers.words(*case[:3]) for case in cases}
    assert found == {str(case[:3]): case[3] for case in cases}


def test_mounts_are_written_as_csv() -> None:
    assert containers.mount(Bind("/a", "/b", True)) == "type=bind,src=/a,dst=/b,ro"
    assert containers.mount(Bind('/a,"b"', "/c")) == 'type=bind,"src=/a,""b""",dst=/c'


def test_missing_file_is_left_out_where_it_is_optional(tmp_path: Path) -> None:
    missing = str(tmp_path / "roots.pem")
    command = containers.start("apptainer", ["--nv"], [Bind(missing, missing, True, True)], "0.sif", "/srv", "/tmp/ty")
    assert (command[0], command[-1]) == ("apptainer", "0.sif")
    assert {"--cleanenv", "--no-eval", "--contain", "--nv"} <= set(command)
    assert not [word for word in command if missing in word]
    assert [
        word for word in containers.start("apptainer", [], [Bind(missing, "/r")], "0.sif", "/", "/t") if missing in word
    ]


def test_setup_changes_variables_of_a_container_but_no_paths_of_the_node(tmp_path: Path) -> None:
    (tmp_path / "setup-before.env").write_text("PATH=/bin\0")
    after = ("PATH=/opt/bin:/bin", "LD_LIBRARY_PATH=/opt/lib", "NCCL_IB_HCA=mlx5", "APPTAINER_BIND=/x", "OWN=node")
    (tmp_path / "setup-after.env").write_text("\0".join(after))
    assert containers.variables({"OWN": "job"}, str(tmp_path)) == {"OWN": "job", "NCCL_IB_HCA": "mlx5"}
    passed = containers.passed({"A": "1", "HOME": "/h"}, "/opt/bin/singularity")
    assert passed == {"SINGULARITYENV_A": "1"}


def test_failed_pull_has_the_reason_of_the_programs_words() -> None:
    output = "INFO:    Starting\nFATAL:   While making image: reading manifest 1 in r/i: manifest unknown\nUsage:\n"
    words = pull.last_words(output)
    assert words == "While making image: reading manifest 1 in r/i: manifest unknown"
    reason, message = spec.failed_pull("r/i:1", words, "n1", "apptainer")
    assert (reason, message) == (Reason.IMAGE_FAILED, f"r/i:1: image not found ({words}).")
    reason, message = spec.failed_pull("r/i:1", "unauthorized", "n1", "apptainer")
    assert reason is Reason.IMAGE_FAILED
    assert "run `apptainer registry login`" in message
    assert spec.failed_pull("r/i:1", "dial tcp: i/o timeout", "n1", "apptainer")[0] is Reason.GIVEN_BACK
    reason, message = spec.failed_pull("r/i:1", "", "n1", "apptainer")
    assert (reason, "there is no program apptainer on n1" in message) == (Reason.HOST_FAILED, True)


def test_images_are_pulled_before_the_ranks_start_and_leave_time_for_it() -> None:
    fields = {"masterConfig": {"imageUri": "r/i:1"}, "scheduling": {"maxRunningTime": "3600s"}}
    asked = order("r", CHIEF, grace_s=30.0).model_copy(update={"training_input": parse_training_input(fields)})
    script = spec.script(asked, str.lower, ["rank"], "/d", ["python", "pull.py", "/d"])
    assert "\npython pull.py /d || exit 1\nexec srun " in script
    arguments = spec.arguments(asked, "/d", str.lower, spec.SlurmDefaults())
    assert "--time=96" in arguments


def test_program_of_images_is_apptainer_or_singularity() -> None:
    good = ("", "apptainer", "singularity", "/opt/bin/apptainer", "/opt/my site/singularity")
    bad = ("pyxis", "docker", "bin/apptainer", "/opt/apptainer/", "apptainer --nv")
    problems = {
        name: SlurmSettings(shared_dir=Path("/s"), slurm_images=name).problem(False, True) for name in good + bad
    }
    assert [name for name, problem in problems.items() if problem] == list(bad)
    assert "--slurm-images must be apptainer, singularity, or the absolute path" in problems["pyxis"]


def staged(tmp_path: Path, reads: tuple[str, ...] = (), **fields: Any) -> Staging:
    update = {"training_input": parse_training_input(fields), "reads": reads}
    asked = order("a" * 32, CHIEF).model_copy(update=update)

    async def settled() -> Staging:
        stager = SlurmStager(tmp_path / "environments", SimpleNamespace(), "python3")  # type: ignore[arg-type]
        stager.begin(asked)
        await stager.settle([asked.run_id], 10.0)
        return stager.status()[asked.run_id]

    return asyncio.run(settled())


def test_job_with_an_image_has_the_directories_of_jobs_before_it(tmp_path: Path) -> None:
    before, own = tmp_path / "before", str(tmp_path / "own")
    before.mkdir()
    reads = (str(before), own, "gs://b/j", str(tmp_path / "missing"))
    staging = staged(tmp_path, reads, masterConfig={"imageUri": "r/i:1"}, jobDir=own)
    assert staging.reads == (Mount("after-1", str(before), str(before)),)


def test_job_with_an_image_needs_its_job_dir_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs" / "first"
    staging = staged(tmp_path, masterConfig={"imageUri": "r/i:1"}, jobDir=str(path))
    assert (staging.phase, staging.job_dir, staging.job_dir_target) == ("ready", str(path), str(path))
    assert path.is_dir()
    assert staged(tmp_path, masterConfig={"imageUri": "r/i:1"}, jobDir="gs://b/first").job_dir == ""


def test_packages_in_an_image_are_refused(tmp_path: Path) -> None:
    staging = staged(
        tmp_path, masterConfig={"imageUri": "r/i:1"}, pythonModule="trainer.task", packageUris=["gs://b/p.tar.gz"]
    )
    assert (staging.phase, staging.reason) == ("failed", Reason.REFUSED)
    assert "Slurm installs no packages in an image" in staging.message
