"""A training loop of PyTorch that logs the model at each epoch, as checkpoints of a run, and finds the best of them."""

import mlflow
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 4)
y = (x.sum(dim=1) > 0).float()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

mlflow.set_experiment("DL_Model_Search")

with mlflow.start_run() as run:
    mlflow.log_params({"lr": 0.5, "epochs": 3})
    for epoch in range(3):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model_info = mlflow.pytorch.log_model(
            pytorch_model=model, name=f"checkpoint-{epoch}", params={"epoch": epoch}, step=epoch, input_example=x[:2].numpy()
        )
        accuracy = ((model(x).squeeze(1) > 0).float() == y).float().mean()
        mlflow.log_metric("accuracy", accuracy.item(), step=epoch, model_id=model_info.model_id)
        mlflow.log_metric("loss", loss.item(), step=epoch)

ranked = mlflow.search_logged_models(
    filter_string=f"source_run_id='{run.info.run_id}'",
    order_by=[{"field_name": "metrics.accuracy", "ascending": False}],
    output_format="list",
)
print([(model.name, model.status, model.params, [(m.key, m.value) for m in model.metrics]) for model in ranked])
assert len(ranked) == 3
best = mlflow.pytorch.load_model(ranked[0].model_uri)
print(best(x[:2]))
