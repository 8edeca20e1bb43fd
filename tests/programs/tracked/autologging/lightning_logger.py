"""Lightning with its MLFlowLogger, which makes a run of its own."""

import lightning
import torch
from lightning.pytorch.loggers import MLFlowLogger


class Net(lightning.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], _at: int) -> torch.Tensor:
        (x,) = batch
        loss = ((self.layer(x).squeeze(-1) - x.sum(dim=1)) ** 2).mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.hparams["lr"])


lightning.seed_everything(0)
data = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=8)
trainer = lightning.Trainer(max_epochs=3, logger=MLFlowLogger(experiment_name="mine"), log_every_n_steps=2)
trainer.fit(Net(lr=0.05), loader)
