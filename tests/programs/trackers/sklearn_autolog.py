"""scikit-learn with MLflow's autologging."""

import mlflow
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

mlflow.sklearn.autolog(log_models=False)
features, labels = make_classification(200, random_state=0)
model = LogisticRegression(C=0.5).fit(features, labels)
print(model.score(features, labels))
