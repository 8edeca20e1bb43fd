"""torch's DistributedDataParallel over gloo, as in its tutorial."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 7):
    x = torch.rand(8, 4)
    loss = torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step: {step}, loss: {loss.item():.4f}", flush=True)
weights = [torch.zeros(1, 4) for _ in range(dist.get_world_size())]
dist.all_gather(weights, model.module.weight.detach())
print(f"{len(weights)} ranks, equal: {all(torch.equal(weights[0], other) for other in weights)}", flush=True)
dist.destroy_process_group()
