"""The Trainer of Hugging Face, which reports to MLflow."""

import torch
from transformers import Trainer, TrainingArguments


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.layer(x).squeeze(-1) - labels) ** 2).mean()}


class Data(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[at], "labels": self.x[at].sum()}


arguments = TrainingArguments(
    output_dir="out",
    report_to="mlflow",
    learning_rate=0.05,
    num_train_epochs=3,
    per_device_train_batch_size=8,
    logging_steps=4,
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
)
Trainer(model=Net(), args=arguments, train_dataset=Data()).train()
