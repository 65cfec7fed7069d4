"""Networks: ours, and adapters that make one of a Flax NNX, Equinox or PyTorch module or of a plain function."""

from posterity.networks.adapters import from_equinox, from_function, from_nnx
from posterity.networks.images import LeNet, ResNet, UNet, lenet, resnet20, unet
from posterity.networks.perceptron import MLP, linear, mlp
from posterity.networks.pytorch import from_torch, to_torch
from posterity.networks.sequences import CNNLSTM, cnn_lstm

__all__ = [
    "CNNLSTM",
    "MLP",
    "LeNet",
    "ResNet",
    "UNet",
    "cnn_lstm",
    "from_equinox",
    "from_function",
    "from_nnx",
    "from_torch",
    "lenet",
    "linear",
    "mlp",
    "resnet20",
    "to_torch",
    "unet",
]
