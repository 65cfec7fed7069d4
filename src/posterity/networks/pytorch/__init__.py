"""Networks of PyTorch modules: their graph, exported by PyTorch, and an interpreter of it in JAX."""

from posterity.networks.pytorch.module import from_torch, to_torch

__all__ = ["from_torch", "to_torch"]
