"""A PyTorch module, trained by a loop of its own, gets a posterior: last-layer Laplace, MC dropout, an ensemble."""

import numpy as np

try:
    import torch
    from torch import nn
except ImportError:
    raise SystemExit("This example needs PyTorch: pip install 'posterity[torch]'.") from None

from posterity import DeepEnsemble, Gaussian, Laplace, MCDropout, Model, Normal, fit, from_torch, to_torch

torch.manual_seed(0)
x = 4 * torch.rand(100, 1) - 2
y = torch.sin(2 * x) + 0.1 * torch.randn(100, 1)


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Dropout(0.05), nn.Linear(50, 1))


module = build()
optimizer = torch.optim.Adam(module.parameters(), 1e-2)
for _ in range(1000):
    optimizer.zero_grad()
    nn.functional.mse_loss(module(x), y).backward()
    optimizer.step()
module.eval()

network = from_torch(module, x)
weights = network.init(None, None)  # the module's own
trained = Model(network, Gaussian(0.1), Normal(0.0, 1.0))
fresh = Model(from_torch(build, x), Gaussian(0.1), Normal(0.0, 1.0))  # each member is built anew
data = (x.numpy(), y[:, 0].numpy())
methods = {
    "last-layer Laplace": (trained, Laplace(start=weights, weights="last_layer")),
    "MC dropout": (trained, MCDropout(num_steps=1000, learning_rate=1e-2, start=weights)),
    "ensemble": (fresh, DeepEnsemble(4, num_steps=1000, learning_rate=1e-2)),
}
for name, (model, method) in methods.items():
    posterior = fit(model, method, data)
    inside, outside = posterior.predict(np.array([[0.5], [4.0]])).epistemic ** 0.5
    print(f"{name:>18}: ignorance {inside:.3f} at 0.5, {outside:.3f} at 4.0")

# Back to PyTorch: the members of the ensemble as modules.
members = [build().eval() for _ in range(4)]
for member, state in zip(members, to_torch(posterior, module), strict=True):
    member.load_state_dict(state)
with torch.no_grad():
    mean = torch.stack([member(x) for member in members]).mean(0)
print(f"{'in PyTorch':>18}: {(mean - y).square().mean() ** 0.5:.3f} off on average, noise included")
