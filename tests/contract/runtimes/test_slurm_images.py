"""Images on a real Slurm by a real Apptainer."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from beds.installed import apptainer
from beds.registry import Fault, Registry, RequiresAuth
from beds.run_ids import unique_run
from beds.slurm import SlurmBed
from contract.runtimes.runtime_labs import Driver, SlurmLab, order
from trainyard_agent.runtimes.attaching.attachment import Attachment
from trainyard_agent.runtimes.base import Launch, Mount, SecretFile
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.attachments import STDOUT

pytestmark = pytest.mark.long

CHIEF, WORKER = "master-replica-0", "worker-replica-0"
RUN, NEXT = unique_run("1"), unique_run("2")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    return apptainer.needed_program(tmp_path_factory.mktemp("apptainer") / "bin")


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry.start() as registry:
        apptainer.put_tiny(registry)
        yield registry


@pytest.fixture
def image(registry: Registry) -> str:
    return f"{registry.address}/tiny:1"


@pytest.fixture
def driver(slurm: SlurmBed, program: str, tmp_path: Path) -> Iterator[Driver]:
    lab = SlurmLab(tmp_path / "shared", slurm)
    lab.images = program
    lab.reopen()
    yield Driver(lab)
    lab.end()


def launch(image: str, *arguments: str, task: str = CHIEF, **variables: str) -> Launch:
    return Launch(task=task, command=arguments, environment=variables, cpus=(), memory_bytes=0, image=image)


def start(driver: Driver, run_id: str, *launches: Launch) -> None:
    asked = order(run_id, *(launch.task for launch in launches))
    driver.runtime.place(asked)
    driver.runtime.start(run_id, list(launches))


def outcome(attachment: Attachment) -> tuple[str, int]:
    """The stdout and the exit code of a command."""
    output = b""
    try:
        while (chunk := attachment.read()) is not None:
            output += chunk[1] if chunk[0] == STDOUT else b""
        return output.decode(), attachment.exit_code()
    finally:
        attachment.close()
        attachment.release()


def test_gang_of_an_image_has_its_program_its_variables_and_its_directories(
    driver: Driver, image: str, tmp_path: Path
) -> None:
    data, jobs = tmp_path / "data, of the site", tmp_path / "jobs"
    data.mkdir()
    jobs.mkdir()
    (data / "set").write_text("examples\n")
    script = """
    printf '%s\\n' "$CONFIG"; echo "$TOKEN"; echo "$GREETING $OWN"; cat "$DATA/set" /etc/keys/key only-here
    [ -n "$SLURM_JOB_ID" ] || echo no variable of the node
    echo x > "$DATA/set" || echo read only; echo y > /srv/app/new; echo z > /tmp/own; cat /tmp/own
    echo result > "$JOBS/model"; echo {} > "$CLOUD_ML_HP_METRIC_FILE"; ls "$HOME" | cat; exit 7
    """
    config = json.dumps({"quoted": '"$HOME" `ls`', "lines": "a\nb"})
    chief = replace(
        launch(image, script, CONFIG=config, OWN="job", JOBS=str(jobs)),
        mounts=(Mount("data", str(data), "/mnt/data", directories={"DATA": ""}),),
        job_dir=str(jobs),
        job_dir_source=str(jobs),
        secrets={"TOKEN": "t0ken-value"},
        writes_metrics=True,
        secret_files=(SecretFile("key", "/etc/keys/key", "KEY", "k3y-value\n"),),
    )
    start(driver, RUN, chief, launch(image, task=WORKER))

    found = driver.ends(RUN)
    assert (found[CHIEF].code, found[CHIEF].reason) == (7, Reason.PROGRAM_ERROR)
    assert (found[WORKER].code, found[WORKER].reason) == (0, Reason.COMPLETED)
    assert [line for line in driver.wait_for_log(RUN, CHIEF) if "ead-only" not in line and "Read-only" not in line] == [
        *(config, "***", "hello job", "examples", "***", "of the image"),
        *("no variable of the node", "read only", "z"),
    ]
    assert driver.wait_for_log(RUN, WORKER) == ["the default", "of the image"]
    assert (jobs / "model").read_text() == "result\n"
    assert driver.runtime.read_metrics(RUN, CHIEF) == b"{}\n"


def test_entrypoint_of_the_job_replaces_that_of_the_image_and_is_stopped_with_one_signal(
    driver: Driver, image: str
) -> None:
    script = "trap 'echo stopping' TERM; echo up; for i in 1 2 3 4 5 6 7 8; do sleep 0.2; done; exit 3"
    counts = replace(launch(image, "-c", script), entrypoint=("/bin/sh",))
    start(driver, RUN, counts)
    driver.until(lambda: driver.texts(RUN, CHIEF))
    driver.runtime.stop(RUN, 30.0)
    end = driver.end(RUN, CHIEF)
    assert (end.code, end.after_stop) == (3, True)
    assert driver.wait_for_log(RUN, CHIEF) == ["up", "stopping"]


def test_command_runs_in_a_container_like_that_of_the_replica(driver: Driver, registry: Registry, image: str) -> None:
    waits = replace(
        launch(image, "echo from the program > /tmp/note; echo up; sleep 1000", CONFIG='a "b" $c'),
        secrets={"TOKEN": "t0ken-value"},
    )
    start(driver, RUN, waits)
    driver.until(lambda: driver.texts(RUN, CHIEF))
    asks = ("/bin/sh", "-c", 'echo "$CONFIG $TOKEN"; cat /tmp/note only-here; exit 5')
    shown = outcome(driver.runtime.execute(RUN, CHIEF, asks, None))
    assert shown == ('a "b" $c t0ken-value\nfrom the program\nof the image\n', 5)
    connection = driver.runtime.connect(RUN, CHIEF, int(registry.address.rpartition(":")[2]))
    connection.write(b"GET /v2/ HTTP/1.0\r\n\r\n")
    assert outcome(connection)[0].startswith("HTTP/1.")
    driver.runtime.stop(RUN, 0.0)
    driver.ends(RUN)


def test_image_that_cannot_be_pulled_is_the_reason(driver: Driver, registry: Registry) -> None:
    missing = f"{registry.address}/tiny:2"
    start(driver, RUN, launch(missing))
    end = driver.end(RUN, CHIEF)
    assert (end.code, end.reason) == (None, Reason.IMAGE_FAILED), end
    assert end.message.startswith(f"{missing}: image not found (")
    assert "manifest unknown" in end.message

    with RequiresAuth.start() as closed:
        run_id, private = unique_run("3"), apptainer.put_tiny(closed)
        start(driver, run_id, launch(private))
        end = driver.end(run_id, CHIEF)
    assert end.reason is Reason.IMAGE_FAILED
    assert end.message.startswith(f"{private}: unauthorized: the registry does not let this agent pull it; run `")

    lab = driver.lab
    assert isinstance(lab, SlurmLab)
    lab.images = "/nowhere/apptainer"
    lab.reopen()
    start(driver, NEXT, launch(missing))
    end = driver.end(NEXT, CHIEF)
    assert end.reason is Reason.HOST_FAILED
    assert "there is no program /nowhere/apptainer on n" in end.message


def test_registry_that_is_away_for_a_while_is_waited_for(driver: Driver) -> None:
    with Registry.start() as away:
        away.fault = Fault(503)
        start(driver, RUN, launch(apptainer.put_tiny(away)))
        driver.until(lambda: driver.reports(RUN)[CHIEF].waits.startswith("its node tries again to pull the image: "))
        assert "503 Service Unavailable" in driver.reports(RUN)[CHIEF].waits
        away.fault = None
        assert driver.end(RUN, CHIEF).reason is Reason.COMPLETED
