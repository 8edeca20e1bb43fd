"""A module of Lightning with its default progress bar."""

import csv

import lightning
import torch


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.losses = []

    def training_step(self, batch, _at):
        (x,) = batch
        loss = ((self.layer(x).squeeze(-1) - x.sum(dim=1)) ** 2).mean()
        self.log("train_loss", loss, prog_bar=True)
        self.losses.append((self.global_step + 1, loss.item()))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


lightning.seed_everything(0)
data = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=8)
net = Net()
lightning.Trainer(max_epochs=3).fit(net, loader)
with open("losses.csv", "w", newline="") as file:
    csv.writer(file).writerows([("step", "train_loss"), *net.losses])
