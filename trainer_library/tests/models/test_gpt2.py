"""GPT-2 as Hugging Face's files have it, against its formulas in NumPy; tests/e2e/programs compares it with torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from support.lazy import experiment, export, jax, models, state, strategy, weights
from trainyard_trainer.arguments import parse_arguments

if TYPE_CHECKING:
    from conftest import Launcher

V, P, D, L, H = 50, 12, 16, 2, 4  # vocabulary, positions, width, layers, heads
CONFIG = {"model_type": "gpt2", "n_head": H, "n_embd": D, "n_layer": L, "n_positions": P, "vocab_size": V}

Arrays = dict[str, NDArray[np.float32]]


def random_gpt2(seed: int = 0) -> Arrays:
    """The parameters by Hugging Face's names; a matrix is [inputs, outputs]."""
    random = np.random.default_rng(seed)
    of_block = {"attn.c_attn": (D, 3 * D), "attn.c_proj": (D, D), "mlp.c_fc": (D, 4 * D), "mlp.c_proj": (4 * D, D)}
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (V, D), "wpe.weight": (P, D)}
    for layer in range(L):
        for name, shape in of_block.items():
            shapes |= {f"h.{layer}.{name}.weight": shape, f"h.{layer}.{name}.bias": shape[1:]}
    found = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    for norm in (*(f"h.{layer}.ln_{number}" for layer in range(L) for number in (1, 2)), "ln_f"):
        found |= {f"{norm}.weight": random.normal(1, 0.3, D).astype(np.float32)}
        found |= {f"{norm}.bias": random.normal(0, 0.3, D).astype(np.float32)}
    return found


def logits(arrays: Arrays, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
    """Tokens [B, T] -> [B, T, V], as "Language Models are Unsupervised Multitask Learners" has it, in 64 bits."""
    p = {name: array.astype(np.float64) for name, array in arrays.items()}
    batch, length = tokens.shape

    def norm(x: NDArray[Any], name: str) -> NDArray[Any]:
        centered = x - x.mean(-1, keepdims=True)
        scaled: NDArray[Any] = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    def dense(x: NDArray[Any], name: str) -> NDArray[Any]:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    def attention(x: NDArray[Any], name: str) -> NDArray[Any]:
        parts = np.split(dense(x, f"{name}.c_attn"), 3, axis=-1)
        q, k, v = (part.reshape(batch, length, H, D // H).transpose(0, 2, 1, 3) for part in parts)
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(D // H)
        scores[..., np.triu(np.ones((length, length), bool), 1)] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ v
        return dense(mixed.transpose(0, 2, 1, 3).reshape(batch, length, D), f"{name}.c_proj")

    x = p["wte.weight"][tokens] + p["wpe.weight"][:length]
    for layer in range(L):
        x = x + attention(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn")
        h = dense(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
        gelu = 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        x = x + dense(gelu, f"h.{layer}.mlp.c_proj")
    result: NDArray[np.float64] = norm(x, "ln_f") @ p["wte.weight"].T
    return result


def with_buffers(arrays: Arrays) -> Arrays:
    """Parameters and the masks of the attention, which older files have, too."""
    masks: Arrays = {f"h.{layer}.attn.bias": np.tril(np.ones((1, 1, P, P), np.float32)) for layer in range(L)}
    return arrays | masks | {f"h.{layer}.attn.masked_bias": np.array(-1e4, np.float32) for layer in range(L)}


def of_language_model(arrays: Arrays) -> Arrays:
    """The names of GPT2LMHeadModel."""
    return {f"transformer.{name}": array for name, array in arrays.items()} | {"lm_head.weight": arrays["wte.weight"]}


def write(folder: Path, arrays: Arrays, config: dict[str, Any] | None = CONFIG) -> Path:
    folder.mkdir()
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_tokens(path: Path, length: int = 9) -> NDArray[np.int32]:
    """Examples of a text that was encoded beforehand; returns the inputs."""
    tokens = np.random.default_rng(1).integers(V, size=(20, length + 1), dtype=np.int32)
    np.savez(path, inputs=tokens[:, :-1], labels=tokens[:, 1:])
    return tokens[:, :-1]


def loaded(url: Path, data: Path, *flags: str) -> tuple[models.Model, Any]:
    """The model of --model gpt2 on the data, and its parameters of --init-from."""
    from trainyard_trainer.data.datasets import Shard
    from trainyard_trainer.processes.cluster import ClusterSpec

    arguments = parse_arguments(["--model", "gpt2", "--init-from", str(url), "--data", str(data), *flags])
    alone = strategy.OneDevice()
    prepared = experiment.prepare(
        arguments, experiment.task_of(arguments), ClusterSpec(), alone, Shard(0, 1, 1), "data"
    )
    model = prepared.model
    values = weights.load(str(url), {"params": model.params.shapes, "batch_stats": {}}, None)
    initial = jax.jit(lambda: state.initial(model, prepared.optimizer(state.START), 0, values).params)()
    return model, initial


def test_files_of_hugging_face_give_the_logits_of_gpt2_at_any_length(tmp_path: Path) -> None:
    arrays = random_gpt2()
    short = {key: array for key, array in arrays.items() if key.startswith(("h.1.", "ln_f"))}
    parts = tmp_path / "parts"
    write(parts, {key: array for key, array in arrays.items() if key not in short})
    (parts / "model.safetensors").rename(parts / "model-00001-of-00002.safetensors")
    safetensors.numpy.save_file(short, parts / "model-00002-of-00002.safetensors")
    files = {key: f"model-0000{1 + (key in short)}-of-00002.safetensors" for key in arrays}
    (parts / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    urls = {
        "a folder": write(tmp_path / "folder", arrays),
        "with masks": write(tmp_path / "masks", with_buffers(arrays)) / "model.safetensors",
        "of a language model": write(tmp_path / "language", of_language_model(with_buffers(arrays))),
        "in parts": parts,
    }
    wrong = []
    for length in (9, P):
        tokens = write_tokens(tmp_path / "tokens.npz", length)[:2]
        expected = logits(arrays, tokens)
        for kind, url in urls.items():
            model, params = loaded(url, tmp_path / "tokens.npz")
            actual = np.asarray(jax.jit(model.infer)(params, {}, tokens))
            if not np.allclose(actual, expected, rtol=0, atol=2e-5):
                wrong.append((kind, length, np.abs(actual - expected).max()))
    assert not wrong


def test_files_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    from trainyard_trainer.errors import TrainerUsageError

    arrays, tokens, book = random_gpt2(), tmp_path / "tokens.npz", tmp_path / "book.txt"
    book.write_text("To be, or not to be. " * 10)
    write_tokens(tokens, P)
    write_tokens(tmp_path / "long.npz", P + 1)
    other_head = of_language_model(arrays) | {"lm_head.weight": 2 * arrays["wte.weight"]}
    lacking = {key: array for key, array in arrays.items() if not key.startswith("h.1.mlp.c_fc.")}
    cut = {**arrays, "h.0.mlp.c_proj.weight": np.zeros((3 * D, D), np.float32)}
    refusals: dict[str, tuple[Path, Path]] = {
        "takes at most 12 tokens; the data has 13. Make the examples shorter": (
            write(tmp_path / "usual", arrays), tmp_path / "long.npz",
        ),
        "Embed_0/embedding [256, 16] (there [50, 16]); it has": (tmp_path / "usual", book),
        "Give the --tokenizer of these embeddings": (tmp_path / "usual", book),
        "does not have Block_1/Dense_0/bias [64], Block_1/Dense_0/kernel [16, 64]; it has": (
            write(tmp_path / "lacking", lacking), tokens,
        ),
        "Block_0/Dense_1/kernel [64, 16] (there [48, 16])": (write(tmp_path / "cut", cut), tokens),
        "has a lm_head.weight that differs from wte.weight": (write(tmp_path / "head", other_head), tokens),
        "has activation_function 'relu' in the config.json beside it; a GPT-2 has 'gelu_new' or": (
            write(tmp_path / "relu", arrays, CONFIG | {"activation_function": "relu"}), tokens,
        ),
        "has n_inner 99, n_embd 16 and n_head 4": (write(tmp_path / "inner", arrays, CONFIG | {"n_inner": 99}), tokens),
        "Block_0/Dense_1/bias [768] and 193 more; it has embeddings.weight and so on.": (
            write(tmp_path / "bert", {"embeddings.weight": arrays["wte.weight"]}, None), tokens,
        ),
    }  # fmt: skip
    wrong = []
    for message, (url, data) in refusals.items():
        with pytest.raises(TrainerUsageError) as refused:
            loaded(url, data, *(("--input-shape", str(P)) if data == book else ()))
        if message not in str(refused.value):
            wrong.append((message, str(refused.value)))
    assert not wrong


def test_published_sizes_are_read_without_a_config() -> None:
    from trainyard_trainer.models import gpt2

    for width, layers, heads in ((768, 12, 12), (1024, 24, 16), (1280, 36, 20), (1600, 48, 25), (768, 6, 12)):
        names = {f"h.{layer}.ln_1.weight": (width,) for layer in range(layers)}
        shapes = {"wte.weight": (50257, width), "wpe.weight": (1024, width)} | names
        assert gpt2.sizes(shapes, None) == gpt2.Sizes(50257, 1024, width, layers, heads)
    model = models.Model(models.built_in("gpt2"), (32,), np.int32, 50257)
    assert model.params.size == 124_439_808


def test_gpt2_trains_on_text_by_its_own_tokenizer_in_two_processes_of_which_the_chief_has_the_files(
    launcher: Launcher, tmp_path: Path
) -> None:
    from data.test_text import PLAY, of_hugging_face

    arrays = random_gpt2() | {"wte.weight": np.random.default_rng(2).normal(0, 0.3, (300, D)).astype(np.float32)}
    (tmp_path / "play.txt").write_text(PLAY)
    chief, elsewhere = write(tmp_path / "gpt2", arrays), tmp_path / "elsewhere"
    (chief / "tokenizer.json").write_bytes(of_hugging_face(300))

    def command(folder: Path) -> tuple[str, ...]:
        files = ("--init-from", str(folder), "--tokenizer", str(folder / "tokenizer.json"))
        return ("-m", "trainyard_trainer.task", "--model", "gpt2", *files)

    job_dir = tmp_path / "job"
    gang = launcher.gang(
        "--data", str(tmp_path / "play.txt"), "--job-dir", str(job_dir), "--input-shape", "8", "--batch-size", "4",
        "--steps", "3", "--learning-rate", "1e-30", "--sample", "5",
        commands={"chief-0": command(chief), "worker-0": command(elsewhere)},
    )  # fmt: skip
    gang.succeed()
    assert len({trainer.parameters_sha256 for trainer in gang}) == 1
    (sample,) = gang["chief-0"].events("sample")
    assert sample["prompt"] in PLAY
    assert sample["text"]
    tokens = np.random.default_rng(3).integers(300, size=(2, 8), dtype=np.int32)
    answers = np.asarray(export.load(str(job_dir / "model"))(tokens)["logits"])
    np.testing.assert_allclose(answers, logits(arrays, tokens), atol=2e-5)
