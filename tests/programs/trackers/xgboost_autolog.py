"""XGBoost with MLflow's autologging."""

import mlflow
import xgboost
from sklearn.datasets import make_classification

mlflow.xgboost.autolog(log_models=False)
features, labels = make_classification(200, random_state=0)
data = xgboost.DMatrix(features, labels)
xgboost.train(
    {"eta": 0.3, "max_depth": 2, "eval_metric": "logloss", "objective": "binary:logistic"},
    data,
    num_boost_round=5,
    evals=[(data, "train")],
)
