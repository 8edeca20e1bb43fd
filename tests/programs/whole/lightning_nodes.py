import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


if __name__ == "__main__":
    x = torch.randn(128, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, num_workers=1)
    trainer = L.Trainer(max_epochs=2, num_nodes=2, devices=1, accelerator="cpu", strategy="ddp", logger=False)
    trainer.fit(Regression(), loader)
    print(f"rank {trainer.global_rank} of {trainer.world_size}: fit done")
