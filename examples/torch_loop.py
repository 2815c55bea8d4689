import torch

from paropt_hpc.comm import world
from paropt_hpc.compress import TopK
from paropt_hpc.train import AllReduce, Replica

torch.set_num_threads(1)
with world() as comm:
    torch.manual_seed(comm.rank)  # this rank's samples
    layers = [torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    replica = Replica(AllReduce(comm, compressor=TopK(0.1)), model.parameters())
    for _ in range(300):
        x = torch.randn(64, 20)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), x[:, :3].sum(dim=1, keepdim=True))
        loss.backward()
        if replica.step(p.grad for p in model.parameters()):  # a tenth is sent, the rest later
            optimizer.step()
    if comm.rank == 0:
        print(f"{comm.size} ranks, loss {loss.item():.2f}")
