"""A server with an afternoon of work: two machines, two projects, three people, thirty jobs, some of them failing."""

import json
import math
import random
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from browser.browser_support import T4, DashboardServer
from integration.api.api_support import ADMIN, ALICE, BOB, GB, ScriptedAgent
from trainyard_protocol.answers.usage import GpuUsage, UsageSample
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.logs import LogChunk, LogEnd, LogLine, digest
from trainyard_protocol.wire.observations import Stall
from trainyard_protocol.wire.sync import RunOrder

RUNNING = "resnet50_lr0_1"
FAILED = "vit_base_patch16"
WITH_FILES = "digits_baseline"
SWEEP = "resnet_sgd_momentum_0_9_"
"""Beginning of names that only their ends tell apart; the longest has 40 characters."""
VISION = {"team": "vision"}
SWEEP_LABELS = VISION | {"stage": "sweep", "dataset": "imagenet-100"}

README = """# ResNet on the digits

The best run so far, with `lr=0.1`. See [the metrics](metrics.csv) and [the paper](https://example.com/paper).

| split | accuracy |
|---|---|
| train | 0.998 |
| held out | 0.981 |

```python
model = load("model/parameters.safetensors")
```
"""
MODEL = {
    "model": "resnet50",
    "input": {"shape": ["batch", 224, 224, 3], "dtype": "float32", "range": [0, 1]},
    "outputs": {"probabilities": {"shape": ["batch", 10], "dtype": "float32"}},
    "platforms": ["cpu", "cuda"],
    "labels": [str(digit) for digit in range(10)],
    "steps": 5000,
}
PICTURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="320" height="200" viewBox="0 0 320 200">'
    '<rect width="320" height="200" fill="#dfe3e8"/><circle cx="160" cy="100" r="{size}" fill="#0a5fb4"/>'
    '<text x="12" y="188" font-size="16">{step}</text></svg>'
)


class ShowClock:
    """A clock that starts some hours ago, so that past events can be replayed at once."""

    def __init__(self) -> None:
        self.behind = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC) - self.behind

    def stopwatch(self) -> float:
        return time.monotonic()


class Show:
    def __init__(self, dashboard: DashboardServer, clock: ShowClock, job_dirs: Path) -> None:
        self._dashboard = dashboard
        self._clock = clock
        self._job_dirs = job_dirs
        self._dice = random.Random(11)
        self._lines: dict[tuple[str, str], list[LogLine]] = {}
        self._box = dashboard.gpu_box("gpu-box", gpus=8, cpus=32)
        self._spare = dashboard.gpu_box("spare", gpus=0, cpus=8)

    def play(self) -> None:
        """From six hours ago until now."""
        for hours, name, owner, labels in (
            (6.0, "digits_baseline", ALICE, {"team": "vision", "stage": "final"}),
            (5.6, "bert_ner_v1", BOB, {"team": "language"}),
            (5.2, "bert_ner_v2", BOB, {"team": "language"}),
            (4.9, "nightly_eval", ADMIN, {"ci": "nightly"}),
            (4.1, "whisper_small_de", BOB, {"team": "speech"}),
        ):
            self._succeeded(name, hours, owner, labels)
        self._failed(4.5, "segmenter_v0", ALICE, "The loss is NaN at step 1840: lower the learning rate.", 1, VISION)
        self._out_of_memory(1.7)
        self._failed(
            1.2, FAILED, ALICE, "ValueError: image size (224, 192) is not a multiple of the patch size 16", 1, VISION
        )
        self._cancelled(3.2, "bert_ner_v3_try")
        for hours, name in ((3.0, "lr_0_1"), (2.9, "lr_0_03"), (2.8, "lr_0_01")):
            self._succeeded(SWEEP + name, hours, BOB, SWEEP_LABELS, "vision")
        why = "RuntimeError: gs://vision/imagenet-100/train has 126,689 of 128,512 images: shard 17 is damaged"
        self._failed(1.0, SWEEP + "lr_0_3_batch_256", BOB, why, 1, SWEEP_LABELS, "vision")
        for number, rate in enumerate(("0.1", "0.03", "0.01")):
            name = f"resnet50_lr{rate}".replace(".", "_")
            self._running(name, 2.4 - number * 0.2, ALICE, 90 - 12 * number, float(rate))
        self._running("whisper_medium_de", 0.8, BOB, 30, 0.02, gpus=0)
        self._stalled(0.9)
        for name, owner in (
            ("resnet152_lr0_1", ALICE),
            ("resnet152_lr0_03", ALICE),
            ("vit_large", ALICE),
            ("bert_large", BOB),
        ):
            self._clock.behind = timedelta(minutes=self._dice.randint(2, 25))
            self._submit(name, owner, VISION, gpus=4)
        self._submit(SWEEP + "lr_1_0_batch_256", BOB, SWEEP_LABELS, gpus=1, project="vision")
        self._clock.behind = timedelta(0)
        self._dashboard.api.use_cases.backend.progress.flush()
        self._dashboard.api.use_cases.controller.tick()

    def _submit(
        self,
        name: str,
        owner: dict[str, str],
        labels: dict[str, str],
        gpus: int = 1,
        workers: int = 0,
        project: str = "research",
    ) -> None:
        job_dir = str(self._job_dirs / name) if name == WITH_FILES else f"gs://{project}/{name}"
        master: dict[str, Any] = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4"}
        if gpus:
            master["masterConfig"] = {"acceleratorConfig": {"type": T4, "count": str(gpus)}}
        if workers:
            master |= {"workerType": "n1-standard-4", "workerCount": str(workers)}
            if gpus:
                master["workerConfig"] = master["masterConfig"]
        given = {
            **master,
            "pythonModule": "trainer.task",
            "args": ["--epochs", "90", "--model", name.partition("_")[0]],
            "jobDir": job_dir,
        }
        body = {"jobId": name, "trainingInput": given, "labels": labels}
        answer = self._dashboard.api.client.post(f"/v1/projects/{project}/jobs", json=body, headers=owner)
        assert answer.status_code == 200, answer.text

    def _placed(self, name: str) -> tuple[ScriptedAgent, RunOrder]:
        self._dashboard.api.use_cases.controller.tick()
        for agent in (self._box, self._spare):
            agent.sync()
            for run in agent.runs.values():
                if run.job_id == name:
                    agent.start(run)
                    return agent, run
        raise AssertionError(f"{name} was not placed")

    def _log(self, agent: ScriptedAgent, run: RunOrder, task: str, lines: Iterable[tuple[datetime, str, str]]) -> None:
        start = agent.shipped.get((run.run_id, task), 0)
        shipped = tuple(
            LogLine.parse({"time": at.isoformat().replace("+00:00", "Z"), "stream": stream, "text": text})
            for at, stream, text in lines
        )
        agent.shipped[run.run_id, task] = agent.ship(task, LogChunk.of(start, shipped), run).next
        self._lines.setdefault((run.run_id, task), []).extend(shipped)

    def _exit(self, agent: ScriptedAgent, run: RunOrder, task: str = "master-replica-0", **ending: Any) -> None:
        lines = self._lines.get((run.run_id, task), [])
        end = LogEnd(count=len(lines), sha256=digest(lines))
        agent.ship(task, LogChunk(start=len(lines), end=end), run)
        agent.exit(task, run=run, logs=False, **ending)

    def _train(self, agent: ScriptedAgent, run: RunOrder, minutes: float, steps: int, done: int, rate: float) -> None:
        """Log lines and usage of a training that began so long ago."""
        begin = self._clock()
        points = 220
        used: list[UsageSample] = []
        for replica in run.replicas:
            lines = [(begin, "stdout", '{"event": "start", "stacks": "SIGUSR1"}')]
            for n in range(1, points + 1):
                at = begin + timedelta(minutes=minutes * n / points)
                step = done * n // points
                noise = self._dice.gauss(0, 0.03) * math.exp(-n / points)
                loss = 6.9 * math.exp(-6 * rate**0.25 * step / steps) + 0.9 * rate**0.1 + noise
                event: dict[str, Any] = {"event": "progress", "step": step, "steps": steps}
                event |= {"epoch": step * 90 // steps, "epochs": 90, "loss": round(loss, 4)}
                event |= {"accuracy": round(max(0.0, min(0.99, 1 - loss / 7.1)), 4)}
                event["examples_per_second"] = round(1180 + self._dice.gauss(0, 25), 1)
                lines.append((at, "stdout", json.dumps(event)))
                if n % 20 == 0 and replica.task.startswith("master"):
                    held = {"event": "evaluation", "step": step, "held_out_loss": round(loss * 1.08 + 0.05, 4)}
                    lines.append((at, "stdout", json.dumps(held)))
                    lines.append((at, "stdout", json.dumps({"event": "checkpoint", "step": step})))
                if n % 70 == 3:
                    warning = "WARNING:absl:the input pipeline is slower than the step; see data.prefetch"
                    lines.append((at, "stderr", warning))
                used.append(
                    UsageSample(
                        run_id=run.run_id,
                        task=replica.task,
                        time=at,
                        cpu=max(0.2, 2.6 + self._dice.gauss(0, 0.4)),
                        memory_bytes=int((5 + 3 * (1 - math.exp(-n / 30))) * GB),
                        gpus=tuple(
                            GpuUsage(
                                id=gpu,
                                utilization=min(1.0, max(0.0, 0.91 + self._dice.gauss(0, 0.05))),
                                memory_bytes=int(13.2 * GB),
                                memory_total=16 * GB,
                            )
                            for gpu in replica.gpus
                        ),
                    )
                )
            self._log(agent, run, replica.task, lines)
        self._dashboard.report(*used)

    def _later(self, minutes: float) -> None:
        self._clock.behind = max(timedelta(0), self._clock.behind - timedelta(minutes=minutes))

    def _begin(
        self, name: str, hours: float, owner: dict[str, str], labels: dict[str, str], **shape: Any
    ) -> tuple[ScriptedAgent, RunOrder]:
        self._clock.behind = timedelta(hours=hours)
        self._submit(name, owner, labels, **shape)
        self._later(0.2)
        return self._placed(name)

    def _succeeded(
        self, name: str, hours: float, owner: dict[str, str], labels: dict[str, str], project: str = "research"
    ) -> None:
        agent, run = self._begin(name, hours, owner, labels, project=project)
        minutes = self._dice.uniform(9, 22)
        self._train(agent, run, minutes, 5000, 5000, self._dice.choice((0.1, 0.03)))
        if name == WITH_FILES:
            self._leave_files(self._job_dirs / name)
        self._later(minutes)
        self._exit(agent, run, message="It completed.")

    def _leave_files(self, job_dir: Path) -> None:
        for path, size in {
            "checkpoints/step_4000/state.npz": 4_800_000,
            "checkpoints/step_5000/state.npz": 4_800_000,
            "logs/train/events.out.tfevents": 61_000,
            "model/parameters.safetensors": 2_400_000,
        }.items():
            (job_dir / path).parent.mkdir(parents=True, exist_ok=True)
            (job_dir / path).write_bytes(b"\0" * size)
        rows = "".join(f"{step},{2 / (step + 1):.4f},{1 - 1 / (step + 2):.4f}\n" for step in range(0, 500, 5))
        (job_dir / "metrics.csv").write_text(f"step,loss,accuracy\n{rows}")
        (job_dir / "README.md").write_text(README)
        (job_dir / "model" / "model.json").write_text(json.dumps(MODEL))
        samples = job_dir / "images" / "samples"
        samples.mkdir(parents=True)
        for step in range(0, 6000, 1000):
            (samples / f"{step}.svg").write_text(PICTURE.format(size=20 + step // 100, step=step))

    def _failed(
        self,
        hours: float,
        name: str,
        owner: dict[str, str],
        why: str,
        code: int,
        labels: dict[str, str],
        project: str = "research",
    ) -> None:
        agent, run = self._begin(name, hours, owner, labels, workers=1, project=project)
        self._train(agent, run, 9, 20_000, 1840, 0.05)
        self._later(9)
        at = self._clock()
        trace = (
            "Traceback (most recent call last):",
            '  File "/opt/trainer/task.py", line 84, in main',
            "    state = train.train(arguments, mesh)",
            '  File "/opt/trainer/train.py", line 131, in train',
            "    loss = step(state, batch)",
            why,
        )
        self._log(agent, run, "worker-replica-0", [(at, "stderr", text) for text in trace])
        self._exit(agent, run, "worker-replica-0", code=code, message=f"It exited with {code}.")
        self._later(0.1)
        self._exit(agent, run, code=143, reason=Reason.STOPPED, after_stop=True)

    def _out_of_memory(self, hours: float) -> None:
        agent, run = self._begin("segmenter_v1", hours, ALICE, VISION, gpus=0)
        self._train(agent, run, 4, 20_000, 410, 0.05)
        self._later(4)
        why = "It was killed at its memory limit of 15.0 GB."
        self._exit(agent, run, code=137, reason=Reason.OUT_OF_MEMORY, message=why)

    def _cancelled(self, hours: float, name: str) -> None:
        agent, run = self._begin(name, hours, BOB, {"team": "language"})
        self._train(agent, run, 6, 5000, 900, 0.05)
        self._later(6)
        self._dashboard.api.client.post(f"/v1/projects/research/jobs/{name}:cancel", headers=BOB)
        agent.sync()
        self._exit(agent, run, code=143, reason=Reason.STOPPED, after_stop=True)

    def _running(
        self, name: str, hours: float, owner: dict[str, str], percent: int, rate: float, gpus: int = 1
    ) -> None:
        labels = {"team": "vision", "sweep": "lr"} if gpus else {"team": "speech"}
        agent, run = self._begin(name, hours, owner, labels, gpus=gpus, workers=1 if gpus else 0)
        self._train(agent, run, hours * 60 - 0.3, 45_000, 450 * percent, rate)

    def _stalled(self, hours: float) -> None:
        agent, run = self._begin("translator_de_en", hours, BOB, {"team": "language"}, gpus=2)
        self._train(agent, run, hours * 60 - 14, 30_000, 8_200, 0.04)
        self._clock.behind = timedelta(minutes=1)
        since = self._clock() - timedelta(minutes=13)
        stall = Stall(step=8_200, since=since, limit_s=600, for_s=640, longest_s=58)
        stacks = (
            "Thread 0x7f3a (most recent call first):\n"
            '  File "data.py", line 212, in next\n  File "train.py", line 96, in train'
        )
        with self._dashboard.api.use_cases.backend.store.write() as writer:
            row = writer.run(run.run_id)
            assert row is not None
            writer.record_stall(row, "master-replica-0", stall, stacks)
