"""Networks: ours, and adapters that make one of a Flax NNX or Equinox module or of a plain function."""

from posterity.networks.adapters import from_equinox, from_function, from_nnx
from posterity.networks.mlp import MLP, linear, mlp

__all__ = ["MLP", "from_equinox", "from_function", "from_nnx", "linear", "mlp"]
