"""A script with scikit-learn that prints its scores at the end."""

import json

from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score
from sklearn.model_selection import train_test_split

x, y = load_breast_cancer(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=42)
print(f"Training on {len(x_train)} samples, testing on {len(x_test)}")
model = RandomForestClassifier(n_estimators=20, random_state=42)
print(model)
model.fit(x_train, y_train)
predicted = model.predict(x_test)

scores = {
    "accuracy": accuracy_score(y_test, predicted),
    "f1": f1_score(y_test, predicted),
    "auc": roc_auc_score(y_test, model.predict_proba(x_test)[:, 1]),
}
print("Train accuracy:", model.score(x_train, y_train))
print(f"Test accuracy: {scores['accuracy']:.4f}")
print(f"F1 score: {scores['f1']:.3f}")
print(f"ROC AUC = {scores['auc']:.3f}")
with open("scores.json", "w") as file:
    json.dump(scores, file)
