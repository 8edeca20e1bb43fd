"""MLflow's quickstart: train, log the model with a signature and an example, load it back and predict."""

import mlflow
import pandas as pd
from mlflow.models import infer_signature
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split

X, y = datasets.load_iris(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=42)

params = {"solver": "lbfgs", "max_iter": 1000, "random_state": 8888}

mlflow.set_experiment("MLflow Quickstart")

with mlflow.start_run():
    mlflow.log_params(params)

    lr = LogisticRegression(**params)
    lr.fit(X_train, y_train)

    accuracy = accuracy_score(y_test, lr.predict(X_test))
    mlflow.log_metric("accuracy", accuracy)
    mlflow.set_tag("Training Info", "Basic LR model for iris data")

    signature = infer_signature(X_train, lr.predict(X_train))
    model_info = mlflow.sklearn.log_model(
        sk_model=lr, name="iris_model", signature=signature, input_example=X_train[:3], params={"kind": "baseline"}
    )
    mlflow.log_metric("holdout_accuracy", accuracy, model_id=model_info.model_id)

loaded_model = mlflow.pyfunc.load_model(model_info.model_uri)
predictions = loaded_model.predict(X_test)
print(pd.DataFrame(X_test, columns=datasets.load_iris().feature_names).assign(actual=y_test, predicted=predictions)[:4])

native = mlflow.sklearn.load_model(model_info.model_uri)
assert (native.predict(X_test) == predictions).all()
