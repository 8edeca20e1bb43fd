"""XGBoost with autologging, inside of a run that its author opens."""

import mlflow
import xgboost as xgb
from sklearn.datasets import load_iris
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import train_test_split

X, y = load_iris(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=42)

mlflow.xgboost.autolog()

dtrain = xgb.DMatrix(X_train, label=y_train)
dtest = xgb.DMatrix(X_test, label=y_test)

with mlflow.start_run():
    params = {
        "objective": "multi:softprob",
        "num_class": 3,
        "learning_rate": 0.3,
        "eval_metric": "mlogloss",
        "seed": 42,
        "nthread": 1,
    }
    model = xgb.train(params, dtrain, num_boost_round=10, evals=[(dtrain, "train"), (dtest, "test")])

    y_proba = model.predict(dtest)
    mlflow.log_metrics(
        {"log_loss": log_loss(y_test, y_proba), "accuracy": accuracy_score(y_test, y_proba.argmax(axis=1))}
    )
