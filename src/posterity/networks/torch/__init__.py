"""Networks of PyTorch modules: their graph, exported by PyTorch, and an interpreter of it in JAX."""

from posterity.networks.torch.module import from_torch, to_torch

__all__ = ["from_torch", "to_torch"]
