"""A classifier with the Trainer of Hugging Face, which prints a dictionary now and then."""

import torch
from transformers import Trainer, TrainingArguments, set_seed


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        prediction = self.layer(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(prediction, labels), "logits": prediction}


class Data(torch.utils.data.Dataset):
    def __init__(self, seed):
        self.x = torch.randn(64, 4, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        return {"x": self.x[at], "labels": self.x[at].sum()}


set_seed(0)
arguments = TrainingArguments(
    output_dir="out",
    learning_rate=0.05,
    num_train_epochs=3,
    per_device_train_batch_size=8,
    logging_steps=4,
    eval_strategy="epoch",
)
trainer = Trainer(model=Net(), args=arguments, train_dataset=Data(0), eval_dataset=Data(1))
trainer.train()
trainer.save_state()
