"""Results without a step: what programs print at their end, and what only looks like it."""

import math

import pytest

from trainyard_protocol.lines.progress_reader import ProgressReader, may_report

RESULTS: dict[str, dict[str, float]] = {
    "Test accuracy: 0.93": {"test_accuracy": 0.93},
    "Final test loss: 0.12": {"final_test_loss": 0.12},
    "accuracy = 0.9312": {"accuracy": 0.9312},
    "Accuracy      : 0.93": {"accuracy": 0.93},
    "Accuracy: 93.1%": {"accuracy": 0.931},
    "Test Loss: 0.3,\tTest Acc: 70 %": {"test_loss": 0.3, "test_acc": 0.7},
    "Accuracy: 9826/10000 (98%)": {"accuracy": 0.9826},
    "Accuracy: 98.26% (9826/10000)": {"accuracy": 0.9826},
    "Test set: Average loss: 0.0523, Accuracy: 9826/10000 (98%)": {
        "test_average_loss": 0.0523,
        "test_accuracy": 0.9826,
    },
    "Train: loss: 0.3, acc: 0.9 | Test: loss: 0.4": {"train_loss": 0.3, "train_acc": 0.9, "test_loss": 0.4},
    "R2 score: 0.81": {"r2_score": 0.81},
    "R^2 = -0.5": {"r2": -0.5},
    "RMSE: 3.2": {"rmse": 3.2},
    "Mean Absolute Error (MAE): 2.1": {"mean_absolute_error": 2.1},
    "Test error: 0.05": {"test_error": 0.05},
    "Error rate: 5%": {"error_rate": 0.05},
    "AUC-ROC: 0.99": {"auc-roc": 0.99},
    "F1 score (macro): 0.8": {"f1_score_macro": 0.8},
    "Accuracy (test): 0.9": {"test_accuracy": 0.9},
    "Accuracy of the network on the 10000 test images: 54 %": {"test_accuracy": 0.54},
    "Accuracy: 0.98 (+/- 0.03)": {"accuracy": 0.98},
    "Mean reward: 195.2 ± 3.1": {"mean_reward": 195.2},
    "Random Forest accuracy: 0.95": {"random_forest_accuracy": 0.95},
    "Test accuracy: 0.93, time: 12.3s": {"test_accuracy": 0.93},
    "Test accuracy: 0.93 Test loss: 0.2": {"test_accuracy": 0.93, "test_loss": 0.2},
    "Loss: nan": {"loss": math.nan},
    "mAP@0.5: 0.61": {"map@0.5": 0.61},
    "  - Accuracy: 0.93.": {"accuracy": 0.93},
    "INFO:root:Test accuracy: 0.93": {"test_accuracy": 0.93},
    "2026-11-22 12:30:01,123 - root - INFO - Test accuracy: 0.93": {"test_accuracy": 0.93},
    "2026-11-22 12:30:01.123 | INFO     | __main__:main:12 - Test accuracy: 0.93": {"test_accuracy": 0.93},
    "I0101 12:00:00.1 7 train.py:42] accuracy = 0.93": {"accuracy": 0.93},
    "{'test_loss': 0.5, 'test_accuracy': 0.93}": {"test_loss": 0.5, "test_accuracy": 0.93},
    '{"accuracy": 0.93, "f1": 0.91}': {"accuracy": 0.93, "f1": 0.91},
    "│         test_loss         │    0.5    │": {"test_loss": 0.5},
}

NO_RESULTS = (
    "Error: 2", "error: 0.5", "ValueError: 5", "ValueError: accuracy: 0.5", "KeyError: 3", "CUDA error: 2",
    "return code: 0", "number of errors: 3", "    accuracy = 0.9", ">       loss = 0.5", "E   loss = 0.5", "+ loss=0.5",
    "export LOSS=0.5", "loss = loss + 0.5", "if accuracy == 0.9: return 1", "loss: mse", "loss function: 3",
    "loss_scale: 1024", "value_loss_coef: 0.5", "dropout: 0.5", "precision: 16", "precision=32", "accuracy: 500",
    "score: 5", "map: 5", "target_accuracy: 0.9", "accuracy_threshold: 0.9", "--accuracy=0.9",
    "Namespace(lr=0.1, loss=0.5)", "{'loss': 'mse', 'lr': 0.1}", "{'accuracy': 0.5, 'dropout': 0.5}",
    '{"loss": 0.2, "name": "no step"}', "Loading score 5", "Loading scores: 5", "Loss: 3 items failed: 2",
    "the score of the game was 3:2", "Accuracy of plane: 61 %", "Accuracy: 12/10", "Accuracy: 9826/0", "loss: 12.3s",
    "losses: [0.5, 0.3]", "Training time: 3.2", "memory: 3.5 GB, loss: 0.1", "torch version: 2.1", "process: 5",
    "stderr: 5", "ERROR:root:loss: 5", "WARNING: loss: 5", "http://host:8080/?loss=0.2", "/data/loss=0.3",
    'File "loss.py", line 3: 5', "    accuracy                           0.93       360", "│ Name  │ Type   │ Params │",
    "│ 0.5 │ 3 │",
)  # fmt: skip


@pytest.mark.parametrize("line", RESULTS)
def test_results_are_metrics_of_the_last_step(line: str) -> None:
    event = ProgressReader().read(line)
    assert event is not None
    assert may_report(line)
    assert repr(dict(event.metrics)) == repr(RESULTS[line])
    assert (event.step, event.is_position, event.is_guess) == (0, False, True)


@pytest.mark.parametrize("line", NO_RESULTS)
def test_errors_configs_timings_and_code_are_no_results(line: str) -> None:
    assert ProgressReader().read(line) is None
