"""The loop of PyTorch's MNIST example, on data of its own."""

import csv

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x):
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def train(model, loader, optimizer, epoch, log):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % 10 == 0:
            print(
                "Train Epoch: {} [{}/{} ({:.0f}%)]\tLoss: {:.6f}".format(
                    epoch, batch_idx * len(data), len(loader.dataset), 100.0 * batch_idx / len(loader), loss.item()
                )
            )
            log.writerow(["train", epoch, batch_idx * len(data), loss.item()])


def test(model, loader, epoch, log):
    model.eval()
    test_loss = correct = 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(dim=1, keepdim=True).eq(target.view_as(output.argmax(dim=1, keepdim=True))).sum().item()
    test_loss /= len(loader.dataset)
    print(
        "\nTest set: Average loss: {:.4f}, Accuracy: {}/{} ({:.0f}%)\n".format(
            test_loss, correct, len(loader.dataset), 100.0 * correct / len(loader.dataset)
        )
    )
    log.writerow(["loss", epoch, "", test_loss])
    log.writerow(["accuracy", epoch, "", correct / len(loader.dataset)])


def dataset(size):
    data = torch.randn(size, 16)
    return TensorDataset(data, data[:, :4].argmax(dim=1))


torch.manual_seed(1)
train_loader = DataLoader(dataset(1920), batch_size=64, shuffle=True)
test_loader = DataLoader(dataset(500), batch_size=100)
model = Net()
optimizer = optim.Adadelta(model.parameters(), lr=1.0)
with open("log.csv", "w", newline="") as file:
    log = csv.writer(file)
    for epoch in range(1, 4):
        train(model, train_loader, optimizer, epoch, log)
        test(model, test_loader, epoch, log)
