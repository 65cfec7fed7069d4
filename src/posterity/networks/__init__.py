"""Networks: ours, and adapters that make one of a Flax NNX or Equinox module or of a plain function."""

from posterity.networks.adapters import from_equinox, from_function, from_nnx
from posterity.networks.images import LeNet, ResNet, UNet, lenet, resnet20, unet
from posterity.networks.perceptron import MLP, linear, mlp
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
    "lenet",
    "linear",
    "mlp",
    "resnet20",
    "unet",
]
