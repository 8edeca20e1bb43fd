import torch
from tqdm import tqdm

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x = torch.randn(320, 8)
y = x.sum(dim=1, keepdim=True)

for epoch in range(3):
    bar = tqdm(range(0, len(x), 32), desc=f"Epoch {epoch + 1}/3")
    for start in bar:
        loss = torch.nn.functional.mse_loss(model(x[start : start + 32]), y[start : start + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")
