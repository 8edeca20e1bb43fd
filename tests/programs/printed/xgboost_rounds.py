"""XGBoost, with the losses of each round."""

import json

import xgboost as xgb
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

x, y = load_breast_cancer(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)
train, test = xgb.DMatrix(x_train, y_train), xgb.DMatrix(x_test, y_test)
parameters = {"max_depth": 2, "eta": 0.3, "objective": "binary:logistic", "eval_metric": ["logloss", "auc"]}
results = {}
xgb.train(parameters, train, num_boost_round=10, evals=[(train, "train"), (test, "eval")], evals_result=results)
with open("results.json", "w") as file:
    json.dump(results, file)
