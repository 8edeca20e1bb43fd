"""Mounts of a run: in every runtime its programs find them, and the cache of their project alone."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import DockerLab, Driver, KubernetesLab, Program, order
from trainyard_agent.runtimes.base import ProgramUser
from trainyard_agent.staging.mounts import AgentMounts
from trainyard_protocol.job.mounts import load_mounts
from trainyard_protocol.job.parsing import parse_training_input

CHIEF = "master-replica-0"
USER = ProgramUser(0x7800_0007, 0x7800_0007, "somebody")
"""The user of containers that have a cache."""

READ = 'cat "$TRAINYARD_MOUNT_IMAGENET_21K/labels"; echo "$TRAINYARD_MOUNT_IMAGENET_21K"'
WRITE = '(echo x >"$TRAINYARD_MOUNT_{0}/new") 2>/dev/null && echo wrote {0} || echo refused {0}'
SAVE = 'mkdir -p "$HF_HOME/hub" && echo weights >"$HF_HOME/hub/model"; echo "$TORCH_HOME"'
LOOK = 'cat "$HF_HOME/hub/model" && echo more >"$HF_HOME/hub/other" && ls "$HF_HOME/hub"'
NONE = 'ls "$HF_HOME" >/dev/null 2>&1 || echo none'


def runs(driver: Driver, tmp_path: Path) -> Callable[[str, str, str], list[str]]:
    """A function that runs a shell as a job of a project on an agent with mounts, and returns its log."""
    for name in ("data", "scratch", "caches"):
        (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / "scratch").chmod(0o777)
    (tmp_path / "data" / "labels").write_text("cat, dog\n")
    is_cluster, is_docker = isinstance(driver.lab, KubernetesLab), isinstance(driver.lab, DockerLab)
    key = "hostPath" if is_cluster else "path"
    file = tmp_path / "mounts.yaml"
    file.write_text(
        f"mounts:\n- {{name: imagenet-21k, {key}: {tmp_path}/data}}\n"
        f"- {{name: scratch, {key}: {tmp_path}/scratch, readOnly: false}}\ncaches: {{{key}: {tmp_path}/caches}}\n"
    )
    mounts = AgentMounts(load_mounts(file), is_cluster)
    wanted = {"mounts": [{"name": "imagenet-21k", "path": "/data"}, {"name": "scratch"}]}

    def output(number: str, project: str, shell: str) -> list[str]:
        update = {"training_input": parse_training_input(wanted), "project": project}
        run = order(unique_run(number), CHIEF).model_copy(update=update)
        launch = driver.lab.launch(CHIEF, Program(code=0, shell=shell))
        driver.runtime.place(run)
        user = USER if is_docker else None
        driver.runtime.start(run.run_id, [replace(launch, mounts=mounts.of(run), user=user)])
        driver.wait_for_exits(run.run_id)
        return driver.wait_for_log(run.run_id, CHIEF)

    return output


def test_program_reads_a_mount_and_its_project_has_one_cache(real_driver: Driver, tmp_path: Path) -> None:
    driver, output = real_driver, runs(real_driver, tmp_path)
    in_container = isinstance(driver.lab, DockerLab | KubernetesLab)
    shell = "\n".join((READ, WRITE.format("IMAGENET_21K"), WRITE.format("SCRATCH"), SAVE))
    labels, path, *written, torch = output("1", "p", shell)
    assert labels == "cat, dog"
    kept = in_container or os.geteuid() != 0
    assert written == [f"{'refused' if kept else 'wrote'} IMAGENET_21K", "wrote SCRATCH"]
    if in_container:
        assert (path, torch) == ("/data", "/opt/trainyard/cache/torch")
    else:
        assert (path.split("/")[-2:], torch.split("/")[-3:]) == (
            ["mounts", "imagenet-21k"],
            ["mounts", "cache", "torch"],
        )
    assert output("2", "p", LOOK) == ["weights", "model", "other"]
    assert output("3", "q", NONE) == ["none"]
    assert (tmp_path / "data" / "labels").read_text() == "cat, dog\n"
