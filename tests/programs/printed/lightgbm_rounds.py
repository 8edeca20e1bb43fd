"""LightGBM, with the metrics of every fifth round, and early stopping."""

import json

import lightgbm as lgb
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

x, y = load_breast_cancer(return_X_y=True)
x_train, x_valid, y_train, y_valid = train_test_split(x, y, random_state=0)
train = lgb.Dataset(x_train, y_train)
results = {}
lgb.train(
    {"objective": "binary", "metric": ["binary_logloss", "auc"], "learning_rate": 0.2, "verbosity": -1},
    train,
    num_boost_round=40,
    valid_sets=[lgb.Dataset(x_valid, y_valid, reference=train)],
    callbacks=[lgb.log_evaluation(5), lgb.early_stopping(10), lgb.record_evaluation(results)],
)
with open("results.json", "w") as file:
    json.dump(results, file)
