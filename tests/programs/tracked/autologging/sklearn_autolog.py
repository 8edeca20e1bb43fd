"""scikit-learn with MLflow's plain autologging."""

import mlflow
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split

mlflow.autolog()

X, y = load_iris(return_X_y=True, as_frame=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=42)

model = LogisticRegression(max_iter=200, random_state=0)
model.fit(X_train, y_train)
print("test accuracy:", model.score(X_test, y_test))
print("test f1:", f1_score(y_test, model.predict(X_test), average="macro"))
