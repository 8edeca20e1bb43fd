"""Progress in what training programs print: real lines of frameworks and tutorials, and what must draw nothing."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.lines.progress import MAX_LINE, ProgressEvent
from trainyard_protocol.lines.progress_reader import ProgressReader

BAR = "━" * 20
BOLD, PLAIN, GREEN = "\x1b[1m", "\x1b[0m", "\x1b[32m"

Point = tuple[int | None, int | None, dict[str, float]]
"""Step, total of steps and metrics of a line."""

PROGRAMS: dict[str, list[tuple[str, Point | None]]] = {
    "JSON without an event": [('{"step": 3, "loss": 0.2}', (3, None, {"loss": 0.2})),
     ('{"global_step": 4.0, "total_steps": 9, "loss": NaN, "pid": 7}', (4, 9, {"loss": math.nan})),
     ('{"epoch": 2, "epochs": 5, "acc": 1}', (2, None, {"acc": 1.0})),
     ('{"severity": "INFO", "message": "step 5: loss=0.1"}', (5, None, {"loss": 0.1})),
     ('{"loss": 0.2, "name": "no step"}', None)],
    "JSON by epochs, with and without an event": [('{"epoch": 1, "loss": 0.5}', (1, None, {"loss": 0.5})),
     ('{"event": "epoch", "epoch": 2, "epochs": 3, "loss": 0.4}', (2, 3, {"loss": 0.4}))],
    "Keras 3": [
        ("Epoch 1/3", (None, None, {})),
        (
            f"{BOLD} 45/80{PLAIN} {GREEN}{BAR[:11]}{PLAIN}\x1b[37m{BAR[11:]}{PLAIN} {BOLD}1s{PLAIN} 8ms/step"
            " - accuracy: 0.6 - loss: 0.7284" + "\b" * 90,
            (45, 240, {"accuracy": 0.6, "loss": 0.7284}),
        ),
        (
            f"{BOLD}80/80{PLAIN} {GREEN}{BAR}{PLAIN}\x1b[37m{PLAIN} {BOLD}1s{PLAIN} 8ms/step - accuracy: 0.6263"
            " - loss: 7.2e-05 - val_loss: nan",
            (80, 240, {"accuracy": 0.6263, "loss": 7.2e-05, "val_loss": math.nan}),
        ),
        ("Epoch 1: val_loss improved from None to 0.83440, saving model to /tmp/m.keras", None),
        ("Epoch 2/3", (None, None, {})),
        (f" 1/80 {BAR} 0s 333us/step - loss: 0.5", (81, 240, {"loss": 0.5})),
        ("Epoch 2: f1=0.75", (160, None, {"f1": 0.75})),  # at the end of its epoch
        ("Epoch 3/3", (None, None, {})),
        (f"80/80 {BAR} 0s 333us/step - loss: 0.25", (240, 240, {"loss": 0.25})),
        (f"63/63 {BAR} 0s 3ms/step - accuracy: 0.82 - loss: 0.4", None),  # model.evaluate
        (f"4/4 {BAR} 0s 28ms/step", None),  # model.predict
    ],
    "Keras 2": [("Epoch 1/2", (None, None, {})), ("     45/Unknown - 3s 12ms/step - loss: 0.5",
     (45, None, {"loss": 0.5})), ("100/100 [==============================] - 5s 12ms/step - loss: 0.4 - val_loss: 0.3",
     (100, 200, {"loss": 0.4, "val_loss": 0.3})), ("Epoch 2/2", (None, None, {})),
     (" 45/100 [============>.................] - ETA: 3s - loss: 0.2", (145, 200, {"loss": 0.2})),
     ("100/100 - 5s - loss: 0.1 - 5s/epoch - 44ms/step", (200, 200, {"loss": 0.1}))],
    "tqdm, a bar an epoch": [("Epoch 0:   0%|          | 0/50 [00:00<?, ?it/s]", (0, 50, {})),
     ("Epoch 0: 100%|██████████| 50/50 [00:00<00:00, 192.13it/s, loss=0.02]", (50, 50, {"loss": 0.02})),
     ("Validation: 100%|██████████| 10/10 [00:00<00:00, 401.27it/s]", None),
     ("Epoch 1:  40%|████      | 20/50 [00:00<00:00, 1.25s/it, v_num=3, loss=0.01]", (70, 100, {"loss": 0.01})),
     ("Epoch 1: val_acc=0.5", (100, None, {"val_acc": 0.5})),
     ("Validation: 100%|##########| 10/10 [00:00<00:00, 4.1it/s, loss=0.3]", (70, None, {"val_loss": 0.3}))],
    "tqdm without descriptions": [
        ("  0%|          | 0/100 [00:00<?, ?it/s, loss=0.5]", (1, 100, {"loss": 0.5})),  # of the first step
        (" 45%|████▌     | 45/100 [00:03<00:04, 12.3it/s, loss=0.31]", (45, 100, {"loss": 0.31})),
        ("100%|██████████| 100/100 [00:07<00:00, 12.3it/s, loss=0.3]", (100, 100, {"loss": 0.3})),
        ("100%|██████████| 20/20 [00:01<00:00, 19.8it/s]", None),  # the bar of an evaluation
        ("  1%|          | 1/100 [00:00<00:09, 10.1it/s, loss=0.2]", (101, 200, {"loss": 0.2})),
    ],
    "tqdm over epochs, of unknown length, of other work": [
        ("Epochs:  30%|███       | 3/10 [00:03<00:07, 1.00s/epoch, loss=0.31]", (3, 10, {"loss": 0.31})),
        ("Downloading: 45%|████▌     | 45/100 [00:03<00:04, 12.3it/s]", None),
        ("model.bin: 45%|████▌     | 12.3M/27.0M [00:03<00:04, 3.93MB/s]", None),
        ("Map: 100%|██████████| 25000/25000 [00:05<00:00, 4800.1 examples/s]", None),
        ("45it [00:03, 12.30it/s, loss=0.3]", (45, None, {"loss": 0.3})),
    ],
    "torch: the MNIST example": [("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.298", (640, 60000, {"loss": 2.298})),
     ("Train Epoch: 2 [0/60000 (0%)]\tLoss: 0.25", (60000, 120000, {"loss": 0.25})),
     ("Test set: Average loss: 0.0500, Accuracy: 9830/10000 (98%)", (60000, None,
     {"test_average_loss": 0.05, "test_accuracy": 0.983}))],
    "torch: the quickstart": [("Epoch 1", (None, None, {})), ("-------------------------------", None),
     ("loss: 2.303494  [   64/60000]", (64, 60000, {"loss": 2.303494})), ("Epoch 2", (None, None, {})),
     ("loss: 1.5  [   64/60000]", (60064, 120000, {"loss": 1.5})), (" Accuracy: 44.7%, Avg loss: 2.150 ", (60064, None,
     {"accuracy": 0.447, "avg_loss": 2.15}))],
    "torch: the ImageNet example": [
        ("Epoch: [0][  10/5005]\tTime  0.53 ( 1.07)\tLoss 6.9e+00 (7.0e+00)\tAcc@1   0.39 (  0.1)",
         (10, 5005, {"loss": 6.9, "acc@1": 0.39})),
        ("Epoch: [1][   5/5005]\tLoss 6.0 (7.0)", (5010, 10010, {"loss": 6.0})),
    ],
    "steps counted anew in each epoch": [("Epoch [1/5], Step [100/600], Loss: 0.3", (100, 3000, {"loss": 0.3})),
     ("Epoch [1/5], Step [600/600], Loss: 0.2", (600, 3000, {"loss": 0.2})), ("Epoch [2/5], Step [100/600], Loss: 0.1",
     (700, 3000, {"loss": 0.1})), ("[epoch 3/5] step: 100, loss: 0.05", (1300, None, {"loss": 0.05}))],
    "torch: the word language model, fairseq": [
        ("| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 14.10 | loss  7.63 | ppl  2054.51",
         (200, 2983, {"lr": 20.0, "loss": 7.63, "ppl": 2054.51})),
        ("epoch 002:    100 / 2983 loss=5.3, Val. Loss: 2", (3083, 5966, {"loss": 5.3, "val_loss": 2.0})),
        ("epoch 3: 12/25/2026 loss=5.5", (8949, None, {"loss": 5.5})),
    ],
    "steps that go on over epochs": [("epoch 1 step 90/200 loss=0.3", (90, 200, {"loss": 0.3})),
     ("epoch 2 step 110/200 loss=0.2", (110, 200, {"loss": 0.2})), ("epoch 3 step 190/200 loss=0.1", (190, 200,
     {"loss": 0.1}))],
    "epochs alone": [
        ("Epoch 3: loss=0.2 acc=0.9", (3, None, {"loss": 0.2, "acc": 0.9})),
        ("2026-11-22 12:30:01,123 - root - INFO - Epoch 4/10 - Train Loss: 0.31, Val Acc: 91.2%",
         (4, 10, {"train_loss": 0.31, "val_acc": 0.912})),
        ("{'loss': 0.5, 'grad_norm': '1.25', 'learning_rate': 5e-05, 'epoch': 5}",
         (5, None, {"loss": 0.5, "grad_norm": 1.25, "learning_rate": 5e-05})),
        ("{'loss': 0.5, 'epoch': 5.25}", (5250, None, {"loss": 0.5})),
        ("Epoch 6: loss=0.1", (6000, None, {"loss": 0.1})),  # in the same unit
    ],
    "transformers 5, with quoted numbers": [("{'loss': '5.128', 'grad_norm': '2.369', 'epoch': '0.5'}",
     (500, None, {"loss": 5.128, "grad_norm": 2.369})), ("{'loss': '3.024', 'epoch': '1'}", (1000, None,
     {"loss": 3.024})), ("{'eval_loss': '4.302', 'epoch': '1'}", (1000, None, {"eval_loss": 4.302})),
     ("{'loss': '2.591', 'epoch': 2}", (2000, None, {"loss": 2.591})),
     ("{'train_runtime': '0.08', 'train_loss': '2.713', 'epoch': '3'}", (3000, None,
     {"train_runtime": 0.08, "train_loss": 2.713}))],
    "transformers, with epochs that have a point": [("{'loss': 0.5, 'epoch': 1.0}", (1000, None, {"loss": 0.5})),
     ("{'loss': 0.4, 'epoch': 2.0}", (2000, None, {"loss": 0.4})), ('{"eval_loss": 0.3, "epoch": 2}', (2000, None,
     {"eval_loss": 0.3}))],
    "XGBoost, of two models": [("[0]\ttrain-logloss:0.45826\teval-error:0",
     (0, None, {"train-logloss": 0.45826, "eval-error": 0.0})), ("[1]\ttrain-logloss:0.34594+0.01\teval-error:nan", (1,
     None, {"train-logloss": 0.34594, "eval-error": math.nan})), ("[0]\ttrain-logloss:0.4", (2, None,
     {"train-logloss": 0.4})), ("Test accuracy: 0.9", (2, None, {"test_accuracy": 0.9}))],
    "LightGBM, with the best round once more": [
        ("[5]\tvalid_0's l2: 0.3\tvalid_0's auc: 0.9", (5, None, {"valid_0_l2": 0.3, "valid_0_auc": 0.9})),
        ("[10]\tcv_agg's valid auc: 0.8 + 0.02", (10, None, {"cv_agg_valid_auc": 0.8})),
        ("Did not meet early stopping. Best iteration is:", None),
        ("[5]\tvalid_0's l2: 0.3\tvalid_0's auc: 0.9", None),
        ("[5]\tvalid_0's l2: 0.2", (15, None, {"valid_0_l2": 0.2})),  # another model
    ],
    "CatBoost": [("0:\tlearn: 0.6832\ttest: 0.69\tbest: 0.69 (0)\ttotal: 1.2ms\tremaining: 11ms",
     (0, None, {"learn": 0.6832, "test": 0.69})), ("10:\tlearn: 0.5\ttotal: 1.2ms\tremaining: 11ms", (10, None,
     {"learn": 0.5})), ("bestTest = 0.69", None)],
    "Lightning: bars of tqdm": [("Epoch 0: 100%|█████| 8/8 [00:00<00:00, 120.01it/s, v_num=0, train_loss=0.5]",
     (8, 8, {"train_loss": 0.5})), ("Epoch 1: 100%|█████| 8/8 [00:00<00:00, 120it/s, v_num=0, train_loss=0.25]", (16,
     16, {"train_loss": 0.25}))],
    "Lightning: bars of tqdm, resumed": [("Epoch 3:  50%|██   | 4/8 [00:00<00:00, 120.01it/s, v_num=0, train_loss=0.5]",
     (28, 32, {"train_loss": 0.5}))],
    "Lightning: bars of Rich": [
        ("Epoch 0/2  ━━━━━━━━╸━━━━━━━━━━━━━━━ 4/8 0:00:00 • -:--:-- 0.00it/s v_num: 0.000 train_loss: 0.512",
         (4, 24, {"train_loss": 0.512})),
        ("Epoch 1/2  ━━━━━━━━━━━━━━━━━━━━━━━━ 8/8 0:00:00 • 0:00:00 120.00it/s v_num: 0.000", (16, 24, {})),
        (" " * 60 + "train_loss: 0.256 ", (16, None, {"train_loss": 0.256})),
    ],
    "Lightning: the last bar of Rich alone, in a pipe": [
        ("Epoch 2/2  ━━━━━━━━━━━━━━━━━ 8/8 0:00:00 • 0:00:00 840.88it/s v_num: 0.000      ", (24, 24, {})),
        (" " * 62 + "train_loss: 0.056 ", (24, None, {"train_loss": 0.056})),
        (" " * 62 + "train_accuracy_of…", None),
        (" " * 62 + "0.248 lr: 1.000    ", (24, None, {"lr": 1.0})),
        ("│         test_loss         │    0.05567199736833572    │", (24, None, {"test_loss": 0.05567199736833572})),
    ],
    "percentages and fractions beside steps": [("Epoch 2: acc: 70 %, top5=91.5%, lr: 1e-3",
     (2, None, {"acc": 0.7, "top5": 0.915, "lr": 0.001})), ("Epoch 3 - Accuracy: 9826/10000 (98%), images: 5/9", (3,
     None, {"accuracy": 0.9826})), ("Epoch 4: acc 7/10, loss 0.3", (4, None, {"acc": 0.7, "loss": 0.3}))],
    "results without a step, then behind steps": [("R2 score: 0.81", (0, None, {"r2_score": 0.81})),
     ("step 20: loss=0.3", (20, None, {"loss": 0.3})), ("Final test loss: 0.12", (20, None, {"final_test_loss": 0.12})),
     ('{"message": "Test accuracy: 0.93"}', (20, None, {"test_accuracy": 0.93}))],
    "named values": [("step 3 loss 0.2", (3, None, {"loss": 0.2})), ("iter 100: loss 2.3456, time 123.45ms, mfu 12.34%",
     (100, None, {"loss": 2.3456})), ("step 250: train loss 1.9, val loss 2.0", (250, None, {"train_loss": 1.9,
     "val_loss": 2.0})), ("INFO:tensorflow:loss = 0.31, step = 301 (0.5 sec)", (301, None, {"loss": 0.31})),
     ("I0101 12:00:00.1 7 train.py:42] global_step: 400, train/loss: tensor(0.5, device='cuda:0')", (400, None,
     {"train/loss": 0.5})), ("Iteration 500, loss = 2.5e-3.", (500, None, {"loss": 0.0025})),
     ("step=600 loss:0.25 lr:1e-3 host:8080", (600, None, {"loss": 0.25, "lr": 0.001}))],
}  # fmt: skip

NOTHING = [
    "",
    "Traceback (most recent call last):",
    '  File "/opt/trainer/step.py", line 3, in step',
    "    loss = model.step(x, epoch=3, lr=0.1)",
    "Namespace(epoch=3, lr=0.1, steps=100)",
    "Step 2: install dependencies",
    "Step 3/10 : RUN pip install torch==2.1.0",
    "Resuming from step 300",
    "Saved checkpoint at step 300 to gs://bucket/run/step=300/model.pt in 2.1 s",
    "Epoch 3: val_loss improved from 0.5 to 0.3, saving model to /tmp/x.h5",
    "Epoch 3 finished in 12.3 s",
    "12:30:01 step 3 of the setup is done",
    "http://host:8080/?step=3&loss=0.2",
    "epoch 3: listening on localhost:8080",
    "step 4: torch version: 2.1.0, python=3.11.7",
    "step 4: date: 2026-11-22, time: 12:30:01",
    "steps: 100, epochs: 5, lr: 0.1",
    "max epoch: 5, lr: 0.1",
    "warmup_step=100 lr=0.1",
    "Best epoch: 3, val_loss: 0.2",
    "global_step/sec: 123.4",
    "tokens at step 5: 1,234",
    "[10]\tvalidation-rmse:0.31, more",
    "[10] validation-rmse:0.31",
    "3/4 of the data is used",
    "10/10 [01:02<00:00]",
    "100%|",
    "%|||| 1/2 [",
    '{"step": "3", "loss": 0.2}',
    '{"step": -3, "loss": 0.2}',
    '{"loss": 0.2, "epoch": true}',
    '{"step": ' + "[" * 2000,
    "step 3 loss 0.2 " + "x" * MAX_LINE,
]

ARBITRARY = st.one_of(
    st.text(),
    st.text(alphabet="0123456789/[]|%=: .,-eEpochstepiterlossNan{}'\"\x1b\b━█", max_size=300),
    st.sampled_from([line for lines in PROGRAMS.values() for line, _ in lines]),
)


def point(event: ProgressEvent | None) -> Point | None:
    return None if event is None else (event.step, event.steps, dict(event.metrics))


def test_programs_draw_what_they_print() -> None:
    wrong = []
    for name, lines in PROGRAMS.items():
        reader = ProgressReader()
        for line, expected in lines:
            found = point(reader.read(line))
            if repr(found) != repr(expected):  # nan is not equal to itself
                wrong.append(f"{name}: {line!r}\n  {found}\n  {expected}")
    assert not wrong, "\n".join(wrong)


def test_other_lines_draw_nothing() -> None:
    wrong = [(line, found) for line in NOTHING if (found := ProgressReader().read(line)) is not None]
    assert not wrong, "\n".join(map(str, wrong))


@given(st.lists(ARBITRARY, max_size=8), st.integers(0, 8))
def test_reader_never_raises_and_continues_from_its_state(lines: list[str], cut: int) -> None:
    reader = ProgressReader()
    expected = [repr(reader.read(line)) for line in lines]
    early = ProgressReader()
    found = [repr(early.read(line)) for line in lines[:cut]]
    late = ProgressReader.of(json.loads(json.dumps(early.state())))
    found += [repr(late.read(line)) for line in lines[cut:]]
    assert found == expected
    assert ProgressReader.of({"unknown": 1}) == ProgressReader.of(None) == ProgressReader()


def test_steps_that_the_program_has_not_named_are_guesses() -> None:
    guesses = ("Epoch 3: loss=0.2", "{'loss': '0.2', 'epoch': '0.5'}", '{"epoch": 2, "loss": 0.2}', "RMSE: 3.2")
    steps = (
        "step 3 loss 0.2",
        "Epoch [1/5], Step [100/600], Loss: 0.3",
        "[0]\ttrain-rmse:0.5",
        '{"step": 3, "loss": 0.2}',
        "Epoch 0: 100%|██████████| 8/8 [00:00<00:00, 120.01it/s, loss=0.5]",
    )
    events = {line: ProgressReader().read(line) for line in guesses + steps}
    assert {line for line, event in events.items() if event is not None and event.is_guess} == set(guesses)
    assert None not in events.values()
