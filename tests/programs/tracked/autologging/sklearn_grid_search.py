"""A grid search of scikit-learn: the autologging has a run for each candidate."""

import mlflow
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

mlflow.set_experiment("iris-search")
mlflow.sklearn.autolog(max_tuning_runs=None)

X, y = load_iris(return_X_y=True)
parameters = {"kernel": ("linear", "rbf"), "C": [1, 10]}

with mlflow.start_run(run_name="grid search"):
    search = GridSearchCV(SVC(random_state=0), parameters, cv=3)
    search.fit(X, y)

print("best:", search.best_params_, search.best_score_)
