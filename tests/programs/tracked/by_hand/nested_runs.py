"""Parent and child runs by hand: a sweep over learning rates."""

import mlflow

mlflow.set_experiment("nested-sweep")


def train(learning_rate, epochs):
    weight = 5.0
    for epoch in range(epochs):
        weight -= learning_rate * 2 * weight
        mlflow.log_metric("loss", weight**2, step=epoch)
    return weight**2


with mlflow.start_run(run_name="sweep", tags={"team": "research"}, description="Three learning rates") as parent:
    mlflow.log_param("epochs", 8)
    best = None
    for learning_rate in (0.01, 0.1, 0.3):
        with mlflow.start_run(run_name=f"lr_{learning_rate}", nested=True):
            mlflow.log_params({"learning_rate": learning_rate, "optimizer": "sgd"})
            mlflow.set_tag("candidate", "yes")
            loss = train(learning_rate, epochs=8)
            mlflow.log_text(f"loss {loss:.6f}\n", "summary.txt")
        if best is None or loss < best[1]:
            best = (learning_rate, loss)
    mlflow.log_param("best_learning_rate", best[0])
    mlflow.log_metric("best_loss", best[1])
    mlflow.set_tags({"mlflow.note.content": "The largest rate wins.", "stage": "done"})
