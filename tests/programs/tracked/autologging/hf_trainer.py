"""The Trainer of Hugging Face, with evaluation, checkpoints and report_to=["mlflow"]."""

import mlflow
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(0)


class Reviews(torch.utils.data.Dataset):
    """Token ids at random; the label is whether there are more large ones than small ones."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.input_ids = torch.randint(1, 50, (count, 8), generator=generator)
        self.labels = (self.input_ids.float().mean(dim=1) > 25).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {
            "input_ids": self.input_ids[i],
            "attention_mask": torch.ones(8, dtype=torch.long),
            "labels": self.labels[i],
        }


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((logits.argmax(axis=-1) == labels).mean())}


config = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2
)
args = TrainingArguments(
    output_dir="results",
    run_name="tiny-bert",
    report_to=["mlflow"],
    num_train_epochs=2,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=16,
    learning_rate=5e-3,
    logging_steps=2,
    eval_strategy="epoch",
    save_strategy="epoch",
    load_best_model_at_end=True,
    metric_for_best_model="accuracy",
)
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=args,
    train_dataset=Reviews(64, seed=0),
    eval_dataset=Reviews(32, seed=1),
    compute_metrics=compute_metrics,
)
trainer.train()
print(trainer.evaluate())
mlflow.end_run()
