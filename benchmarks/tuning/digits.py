"""configs/tuning.yaml on a service of its own, beside a training with the program's defaults: held-out accuracy."""

import subprocess
import sys
import tempfile
from pathlib import Path

from trainyard import Client

ROOT = Path(__file__).parents[2]
TRAINYARD = str(Path(sys.executable).with_name("trainyard"))
METRIC = "held_out_accuracy"
LIMIT_S = 1800.0


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        service = ["--state-dir", directory]
        subprocess.run([TRAINYARD, "up", *service], check=True, stdout=subprocess.DEVNULL)
        try:
            with Client(state_dir=directory) as client:
                _compare(client)
        finally:
            subprocess.run([TRAINYARD, "down", *service], check=True, stdout=subprocess.DEVNULL)


def _compare(client: Client) -> None:
    package = ROOT / "trainer_template" / "trainer"
    study = client.submit(ROOT / "configs" / "tuning.yaml", job_id="digits", package_path=package)
    study.wait(LIMIT_S, check=True)
    machine = {"trainingInput": {"scaleTier": "CUSTOM", "masterType": "local-1"}}
    default = client.submit(machine, package_path=package, module_name="trainer.task", args=["--epochs", 1])
    default.wait(LIMIT_S, check=True)
    print(f"default    {default.metrics(METRIC)[METRIC].last:.4f}")
    for trial in study.trials():
        values = ", ".join(f"{name}={value}" for name, value in trial.parameters.items())
        value = "-" if trial.final is None else f"{trial.final.value:.4f}"
        print(f"trial {trial.number:<4} {value}  {values}")


if __name__ == "__main__":
    main()
