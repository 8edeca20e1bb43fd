"""Lightning with mlflow.pytorch.autolog, the run opened around the training."""

import lightning as L
import mlflow
import mlflow.pytorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

L.seed_everything(0)


class Classifier(L.LightningModule):
    def __init__(self, learning_rate=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", nn.functional.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(dim=1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)


x = torch.randn(128, 4)
y = (x.sum(dim=1) > 0).long()
train_loader = DataLoader(TensorDataset(x[:96], y[:96]), batch_size=16)
val_loader = DataLoader(TensorDataset(x[96:], y[96:]), batch_size=16)

mlflow.pytorch.autolog()

trainer = L.Trainer(max_epochs=3, accelerator="cpu", log_every_n_steps=2, enable_progress_bar=False)
with mlflow.start_run() as run:
    trainer.fit(Classifier(), train_loader, val_loader)
