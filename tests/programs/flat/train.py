import csv
from pathlib import Path

from model import Mean

rows = list(csv.reader(Path(__file__).with_name("data.csv").open()))
mean = Mean()
if __name__ == "__main__":
    for epoch, (value,) in enumerate(rows, 1):
        mean.add(float(value))
        print({"epoch": epoch, "mean": mean.value})
