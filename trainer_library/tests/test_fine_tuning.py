"""Trainings that begin with other parameters, change how they are trained, divide them, or feed on other data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.numpy

from support.events import gets
from support.lazy import experiment, jax, jnp, models, optax, optimizers, state, steps, strategy, tiny
from trainyard_trainer.arguments import FlagError, parse_arguments
from trainyard_trainer.data.datasets import DataError, from_arrays

TRAINER = ("-m", "trainyard_trainer.task")

if TYPE_CHECKING:
    from conftest import Launcher


def parameters(job_dir: Path) -> dict[str, Any]:
    (file,) = (job_dir / "model").glob("*.safetensors")
    return dict(safetensors.numpy.load_file(file))


@pytest.fixture(scope="module")
def base(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job directory of a training of the digits."""
    job_dir = tmp_path_factory.mktemp("base") / "job"
    trainer = launcher.alone("--job-dir", str(job_dir), "--epochs", "2")
    assert trainer.wait() == 0, trainer.stderr
    return job_dir


def test_fine_tuning_freezes_what_it_is_told_to_and_begins_with_a_model_a_file_or_a_checkpoint(
    base: Path, launcher: Launcher, tmp_path: Path
) -> None:
    (file,) = (base / "model").glob("*.safetensors")
    checkpoints = tmp_path / "checkpoints-only"
    checkpoints.mkdir()
    (checkpoints / "checkpoints").symlink_to(base / "checkpoints")
    flags: dict[str, tuple[str, ...]] = {
        "frozen": ("--init-from", str(base), "--freeze", "Conv_|Dense_0"),
        "lora": ("--init-from", str(file), "--lora", "2", "--lora-on", "Dense_[01]/kernel$"),
        "skipped": ("--init-from", str(checkpoints), "--init-skip", "Dense_1", "--freeze", "Conv_"),
        "other": ("--init-from", str(base), "--data", "synthetic", "--input-shape", "8,8,1", "--classes", "4"),
    }
    short = ("--epochs", "1", "--learning-rate", "0.0005")
    trainers = {name: launcher.alone("--job-dir", str(tmp_path / name), *short, *own) for name, own in flags.items()}
    assert trainers["other"].wait() == 2
    assert "does not have Dense_1/bias [4] (there [10]), Dense_1/kernel [128, 4]" in trainers["other"].stderr
    assert "Name what is to be new by --init-skip REGEX." in trainers["other"].stderr
    before = parameters(base)
    for name in ("frozen", "lora", "skipped"):
        assert trainers[name].wait() == 0, trainers[name].stderr
        assert trainers[name].held_out_accuracy >= 0.95
        after = parameters(tmp_path / name)
        assert after.keys() == before.keys(), "the exported parameters are those of the network"
        changed = {key for key in before if not np.array_equal(before[key], after[key])}
        assert (
            changed
            == {
                "frozen": {"params/Dense_1/bias", "params/Dense_1/kernel"},
                "lora": {"params/Dense_0/kernel", "params/Dense_1/kernel"},
                "skipped": {f"params/Dense_{number}/{kind}" for number in (0, 1) for kind in ("bias", "kernel")},
            }[name]
        )
        if name == "lora":
            added = after["params/Dense_0/kernel"] - before["params/Dense_0/kernel"]
            assert np.linalg.matrix_rank(added, tol=1e-4) == 2


def test_flags_that_train_nothing_or_name_nothing_are_refused() -> None:
    from trainyard_trainer.data.datasets import Shard
    from trainyard_trainer.errors import TaskError
    from trainyard_trainer.processes.cluster import ClusterSpec

    refusals = {
        ("--freeze", "Konv"): "--freeze Konv matches 0 of 8 parameters: Conv_0/bias",
        ("--freeze", "."): "--freeze . matches 8 of 8 parameters",
        ("--lora", "2", "--freeze", "Conv"): "leave --freeze out",
        ("--lora", "2", "--lora-on", "Konv"): "--lora-on Konv matches no kernel",
        ("--sample", "5"): "--sample is for text",
        ("--data", "synthetic", "--input-shape", "8", "--classes", "9", "--model", "transformer", "--mixup", "0.2"): (
            "--mixup is for images"
        ),
    }
    for flags, message in refusals.items():
        arguments, alone = parse_arguments(flags), strategy.OneDevice()
        task = experiment.task_of(arguments)
        with pytest.raises(TaskError, match=message):
            experiment.prepare(arguments, task, ClusterSpec(), alone, Shard(0, 1, 1), "data")
    with pytest.raises(FlagError, match="--global-batch 10 must be a multiple of the 4 replicas"):
        experiment.batches_of(parse_arguments(["--global-batch", "10"]), 4)


def test_moving_average_of_the_parameters_is_evaluated_and_the_first_updates_count_for_more() -> None:
    model, decay = tiny.cnn(), 0.9
    averaged, plain = optimizers.with_average(optax.sgd(0.1), decay), optax.sgd(0.1)
    training, alone = state.initial_state(model, averaged, 0), strategy.OneDevice()
    inputs, labels = tiny.examples(model, 8)
    batch = (inputs, labels, np.ones(8, np.float32))
    step, plain_step = (steps.make_train_step(model, optimizer, alone) for optimizer in (averaged, plain))
    twin = alone.replicate(state.initial_state(model, plain, 0))
    expected = state.initial_state(model, plain, 0).params
    training = alone.replicate(training)
    for number in range(15):
        training, _ = step(training, steps.no_sums(model), *batch)
        twin, _ = plain_step(twin, steps.no_sums(model), *batch)
        kept = min(decay, (1 + number) / (10 + number))
        expected = jax.tree.map(lambda old, new, kept=kept: kept * old + (1 - kept) * new, expected, twin.params)
    jax.tree.map(np.testing.assert_array_equal, training.params, twin.params)
    average, _ = steps.evaluated_variables(training)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), average, expected)


def test_mixup_is_the_gradient_of_mixed_inputs_and_of_both_losses() -> None:
    model, sgd, alone = tiny.cnn(), optax.sgd(0.1), strategy.OneDevice()
    inputs, labels = tiny.examples(model, 6)
    before = state.initial_state(model, sgd, 0)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), 0)
    share = jax.random.beta(jax.random.fold_in(key, 1), 0.4, 0.4)

    def loss(params: Any) -> Any:
        mixed = share * inputs + (1 - share) * inputs[::-1]
        logits = model.infer(params, model.statistics.unravel(before.statistics), mixed)
        of = optax.softmax_cross_entropy_with_integer_labels
        return (share * of(logits, labels) + (1 - share) * of(logits, labels[::-1])).mean()

    expected = jax.tree.map(
        lambda leaf, change: leaf - 0.1 * change, before.params, jax.jit(jax.grad(loss))(before.params)
    )
    step = steps.make_train_step(model, sgd, alone, mixup=0.4)
    after, _ = step(alone.replicate(before), steps.no_sums(model), inputs, labels, np.ones(6, np.float32))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after.params, expected)


def test_label_smoothing_and_the_first_five_classes() -> None:
    from trainyard_trainer.models.task import cross_entropy, top_5

    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(50, 20)).astype(np.float32), jnp.asarray(random.integers(20, size=50))
    soft = 0.9 * np.eye(20)[np.asarray(labels)] + 0.1 / 20
    expected = -(soft * jax.nn.log_softmax(logits)).sum(axis=-1)
    np.testing.assert_allclose(cross_entropy(jnp.asarray(logits), labels, 0.1), expected, rtol=1e-5)
    among = [label in np.argsort(row)[-5:] for row, label in zip(logits, labels.tolist(), strict=True)]
    assert np.asarray(top_5(jnp.asarray(logits), labels)).tolist() == [float(value) for value in among]


def test_weights_of_a_task_make_means_over_tokens() -> None:
    import dataclasses

    from trainyard_trainer.models.task import TrainingTask

    lengths = jnp.asarray([4, 1])
    losses = jnp.asarray([1.0, 6.0])
    task = TrainingTask(
        tiny.cnn().network, loss=lambda outputs, _labels: outputs, metrics={}, weights=lambda labels: labels * 1.0
    )
    model = models.Model(dataclasses.replace(task, name="weighted"), (8, 8, 1), jnp.float32, 0)
    sums = model.measure(losses, lengths, jnp.ones(2))
    assert models.means(model.metric_names, sums) == {"loss": 2.0}


SEVERAL = """
import json
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from trainyard_trainer import TrainingTask, from_arrays, linen, run

class Network(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        pixels = x["picture"].reshape(len(x["picture"]), -1)
        hidden = nn.relu(nn.Dense(32)(jnp.concatenate([pixels, x["place"]], axis=-1)))
        return {"kind": nn.Dense(3)(hidden), "height": nn.Dense(1)(hidden)[..., 0]}

def data():
    random = np.random.default_rng(0)
    place = random.random((600, 2))
    picture = random.integers(256, size=(600, 4, 4, 1), dtype=np.uint8)
    inputs = {"picture": picture, "place": place}
    labels = {"kind": (3 * place[:, 0]).astype(int), "height": place[:, 1] + picture[:, 0, 0, 0] / 255}
    part = lambda arrays, rows: {name: array[rows] for name, array in arrays.items()}
    train, held_out = slice(0, 500), slice(500, 600)
    return from_arrays(part(inputs, train), part(labels, train), part(inputs, held_out), part(labels, held_out))

def loss(outputs, labels):
    chosen = jnp.take_along_axis(nn.log_softmax(outputs["kind"]), labels["kind"][:, None], axis=-1)[:, 0]
    return (outputs["height"] - labels["height"]) ** 2 - chosen

def show(evaluation):
    inputs = {"picture": np.zeros((1, 4, 4, 1), np.uint8), "place": np.zeros((1, 2), np.float32)}
    print(json.dumps({"event": "shown", "step": evaluation.step, "loss": evaluation.metrics["loss"],
                      "height": float(evaluation.infer(inputs)["height"][0])}), flush=True)

task = TrainingTask(
    network=linen(Network()), data=data, loss=loss, exported=lambda outputs: outputs, learning_rate=0.01,
    metrics={"kind": lambda outputs, labels: (outputs["kind"].argmax(-1) == labels["kind"]) * 1.0},
    on_evaluation=show,
)

if __name__ == "__main__":
    run(task)
"""


def test_several_inputs_and_labels_train_with_a_callback_and_predict(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from support.lazy import predict

    (tmp_path / "several.py").write_text(SEVERAL)
    job_dir = tmp_path / "job"
    flags = ("--epochs", "8", "--job-dir", str(job_dir), "--parallel", "fsdp", "--best", "kind:max")
    two_devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    trainer = launcher.alone(*flags, command=(str(tmp_path / "several.py"),), **two_devices)
    assert trainer.wait() == 0, trainer.stderr
    evaluated, shown = trainer.events("evaluation"), trainer.events("shown")
    assert evaluated[-1]["held_out_kind"] >= 0.8
    assert [event["loss"] for event in shown] == pytest.approx(
        [event["held_out_loss"] for event in evaluated], abs=1e-5
    )

    instances = tmp_path / "instances.jsonl"
    example = {"picture": np.zeros((4, 4, 1), int).tolist(), "place": [0, 0]}
    instances.write_text(json.dumps(example) + "\n" + json.dumps(example) + "\n")
    assert predict.main(["--model", str(job_dir / "model"), str(instances)]) == 0
    predicted = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["height"] for answer in predicted] == pytest.approx([shown[-1]["height"]] * 2, abs=1e-5)
    instances.write_text(json.dumps({"place": [0, 0]}))
    assert predict.main(["--model", str(job_dir / "model"), str(instances)]) == 1
    assert 'line 1 is not an example: an object with "picture", "place".' in capsys.readouterr().err


def test_several_arrays_need_one_of_each_for_every_example() -> None:
    one, two = np.zeros((1, 2)), np.zeros((2, 3))
    with pytest.raises(DataError, match="training inputs are 2 of 'a', 1 of 'b'; each example needs one of all"):
        from_arrays({"a": two, "b": one}, np.zeros(2), {"a": two, "b": two}, np.zeros(2))
    with pytest.raises(DataError, match="held-out data has other names"):
        from_arrays({"a": two}, np.zeros(2), {"b": two}, np.zeros(2))


def test_global_batch_gives_the_same_parameters_on_other_devices_after_a_restart(
    launcher: Launcher, tmp_path: Path
) -> None:
    flags = ("--global-batch", "32", "--batch-size", "8", "--task", "own.regression", "--steps", "60")
    tests = Path(__file__).parent
    python_path = f"{tests.parent}:{tests}"

    def train(job: str, devices: int, *more: str, command: tuple[str, ...] = TRAINER) -> Path:
        environment = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "PYTHONPATH": python_path}
        job_dir = tmp_path / job
        trainer = launcher.alone(*flags, "--job-dir", str(job_dir), *more, command=command, **environment)
        assert trainer.wait() == 0, trainer.stderr
        assert "the global batch is 32 examples" in trainer.stderr
        return job_dir

    undisturbed = parameters(train("alone", 1))
    train("elastic", 4, "--parallel", "fsdp", command=gets("SIGTERM", 20))
    shrunk = parameters(train("elastic", 1))
    for name, array in undisturbed.items():
        np.testing.assert_allclose(shrunk[name], array, atol=2e-5, err_msg=name)


TWO, FOUR = (f"--xla_force_host_platform_device_count={count}" for count in (2, 4))


def test_divided_state_is_saved_by_each_process_and_a_killed_gang_ends_as_if_undisturbed(
    launcher: Launcher, tmp_path: Path
) -> None:
    flags = ("--parallel", "fsdp", "--epochs", "2", "--checkpoint-every", "10", "--batch-size", "8")
    undisturbed = launcher.gang(*flags, "--job-dir", str(tmp_path / "whole"), XLA_FLAGS=TWO)
    undisturbed.succeed()
    index = json.loads((tmp_path / "whole/checkpoints/index.json").read_text())
    parts = index["checkpoints"][-1]["parts"]
    assert sorted(parts) == ["part-00000.safetensors", "part-100000.safetensors"]
    sizes = [
        (tmp_path / "whole/checkpoints" / index["checkpoints"][-1]["name"] / part).stat().st_size for part in parts
    ]
    assert max(sizes) < 1.2 * min(sizes)

    killed = launcher.gang(*flags, "--job-dir", str(tmp_path / "killed"), XLA_FLAGS=TWO)
    killed["chief-0"].wait_for("checkpoint")
    killed["worker-0"].kill()
    assert killed["chief-0"].wait() != 0
    again = launcher.gang(*flags, "--job-dir", str(tmp_path / "killed"), XLA_FLAGS=TWO)
    again.succeed()
    assert again["chief-0"].events("begin")[0]["step"] >= 10
    hashes = {trainer.parameters_sha256 for trainer in (*undisturbed, *again)}
    assert len(hashes) == 1
    # One process with all devices opens what two have saved.
    alone = launcher.alone(*flags, "--job-dir", str(tmp_path / "killed"), XLA_FLAGS=FOUR)
    assert alone.wait() == 0, alone.stderr
    assert {alone.parameters_sha256} == hashes


@pytest.mark.long
def test_divided_state_needs_one_job_directory_for_all(launcher: Launcher, tmp_path: Path) -> None:
    commands = {
        task: ("-m", "trainyard_trainer.task", "--job-dir", str(tmp_path / task)) for task in ("chief-0", "worker-0")
    }
    gang = launcher.gang("--parallel", "fsdp", commands=commands, XLA_FLAGS=TWO)
    assert [trainer.wait() for trainer in gang] == [2, 2], gang["chief-0"].stderr
    assert "do not see one --job-dir" in gang["chief-0"].stderr


def test_mesh_that_does_not_fit_the_devices_is_refused() -> None:
    from trainyard_trainer.processes.cluster import ClusterError

    for sizes in ([("fsdp", 3)], [("data", 2)], [("tensor", 2)]):
        with pytest.raises(ClusterError, match=r"does not divide the 1 devices of this job"):
            strategy.make_strategy("auto", mesh=sizes)


TEXT = "To be, or not to be: that is the question.\n\nWhether ’tis nobler in the mind to suffer\n" * 60


def test_language_model_on_text_of_ones_own_with_a_tokenizer_that_a_second_start_finds(
    launcher: Launcher, tmp_path: Path
) -> None:
    from trainyard_trainer.data.text import SentencePiece

    (tmp_path / "play.txt").write_text(TEXT)
    job_dir = tmp_path / "job"
    flags = (
        "--model", "transformer", "--data", str(tmp_path / "play.txt"), "--tokenizer", "300", "--sample", "12",
        "--input-shape", "16", "--job-dir", str(job_dir), "--log-every", "5", "--evaluate-every", "0",
    )  # fmt: skip
    trainer = launcher.alone(*flags, "--steps", "30")
    assert trainer.wait() == 0, trainer.stderr
    tokenizer = SentencePiece((job_dir / "tokenizer.model").read_bytes(), "tokenizer.model")
    assert len(tokenizer) == 300
    assert tokenizer.decode(tokenizer.encode(TEXT + " \t\n 漢").tolist()) == TEXT + " \t\n 漢"
    assert len(trainer.events("sample")) == len(trainer.events("evaluation"))
    sample = trainer.events("sample")[-1]
    assert sample["prompt"] in TEXT
    assert len(tokenizer.encode(sample["text"])) > 0
    assert trainer.events("progress")[-1]["loss"] < 0.8 * trainer.events("progress")[0]["loss"]
    again = launcher.alone(*flags, "--steps", "31")
    assert again.wait() == 0, again.stderr
    assert again.events("begin")[0]["step"] == 30

    large = launcher.alone(*flags, "--tokenizer", "9999", "--job-dir", str(tmp_path / "large"))
    assert large.wait() == 2
    assert "No tokenizer of 9999 pieces can be made of the text" in large.stderr


def test_processes_that_decode_give_the_same_training_and_name_a_broken_file(
    launcher: Launcher, tmp_path: Path
) -> None:
    from test_own import write_photos

    write_photos(tmp_path / "photos")
    flags = ("--data", str(tmp_path / "photos"), "--input-shape", "8,8,3", "--epochs", "1", "--augment", "crop,flip")
    hashes = []
    for count in ("0", "2"):
        trainer = launcher.alone(*flags, "--decode-processes", count, "--job-dir", str(tmp_path / count))
        assert trainer.wait() == 0, trainer.stderr
        assert "leaked" not in trainer.stderr
        hashes.append(trainer.parameters_sha256)
    assert len(set(hashes)) == 1
    broken = tmp_path / "photos/waves/3.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n")
    refused = launcher.alone(*flags, "--decode-processes", "2", "--job-dir", str(tmp_path / "broken"))
    assert refused.wait() == 2
    assert f"{broken} is a JPEG or PNG that cannot be decoded" in refused.stderr
    assert "Traceback" not in refused.stderr
