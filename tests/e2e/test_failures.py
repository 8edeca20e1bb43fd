"""Messages for a user whose trainer or config is wrong."""

import json

from e2e.harness import Service, local


def submit(service: Service, job: str, *words: str) -> tuple[int, str]:
    done = service.run("jobs", "submit", "training", job, "--config", "config.yaml", "--stream-logs", *words)
    assert "Traceback (most recent call last)" not in done.stderr or "prog" in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_trainer_that_exits_3_makes_the_command_exit_3_with_replica_code_and_last_lines(service: Service) -> None:
    service.program("import sys\nprint('loading data')\nprint('no such bucket', file=sys.stderr)\nsys.exit(3)\n")
    service.config(**local())
    code, printed = submit(service, "exits_3")
    assert code == 3
    assert "The replica master 0 exited with a non-zero status of 3." in printed
    assert "no such bucket" in printed.split("failed first")[1]
    assert service.state("exits_3") == "FAILED"
    message = service.ok("jobs", "describe", "exits_3", "--format", "value(errorMessage)")
    assert "The replica master 0 exited with a non-zero status of 3." in message


def test_module_that_is_not_installed_is_reported_with_replica_and_reason(service: Service) -> None:
    service.program("import no_such_module\n")
    service.config(**local())
    code, printed = submit(service, "unknown_module")
    assert code == 1
    assert "The replica master 0 exited with a non-zero status of 1." in printed
    assert "No module named 'no_such_module'" in printed
    assert "\n  ModuleNotFoundError: No module named 'no_such_module' (no package here has" in printed
    assert "ModuleNotFoundError" in service.ok("jobs", "list")


def test_killed_worker_is_named_and_the_gang_runs_again(service: Service) -> None:
    service.program(
        """
        import json, os, pathlib, signal, time
        task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
        mark = pathlib.Path(os.environ["TRAINYARD_JOB_DIR"]) / "killed-once"
        if task == "worker" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if task == "chief":
            while not mark.exists():
                time.sleep(0.05)
            time.sleep(3)
        print("done", flush=True)
        """
    )
    service.config(**local(workers=1))
    code, printed = submit(service, "killed")
    assert "The replica worker 0 was killed by signal 9 (SIGKILL)" in printed
    assert code == 0
    detail = json.loads(service.ok("jobs", "describe", "killed", "-o", "json", "--all"))
    assert [run["number"] for run in detail["runs"]] == [1, 2]
    assert detail["runs"][0]["verdict"]["replica"] == "worker-replica-0"
