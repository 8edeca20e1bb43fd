"""LightGBM with autologging and early stopping."""

import lightgbm as lgb
import mlflow
import mlflow.lightgbm
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

mlflow.set_experiment("lightgbm-example")
mlflow.lightgbm.autolog()

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=42)
train_set = lgb.Dataset(X_train, label=y_train)
valid_set = lgb.Dataset(X_test, label=y_test, reference=train_set)

params = {
    "objective": "binary",
    "metric": ["binary_logloss", "auc"],
    "learning_rate": 0.1,
    "num_leaves": 7,
    "seed": 42,
    "deterministic": True,
    "num_threads": 1,
    "verbose": -1,
}
lgb.train(
    params,
    train_set,
    num_boost_round=30,
    valid_sets=[train_set, valid_set],
    valid_names=["train", "valid"],
    callbacks=[lgb.early_stopping(5)],
)
