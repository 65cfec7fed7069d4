"""What runs inside the workers of benchmarks/networks.py: our networks through `fit`, and the same ones in PyTorch.

Both begin with the very same weights, made by numpy under our names and in our shapes, and report the loss there, so
that it can be seen that they compute the same function. PyTorch's side runs in the peers' environment.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from workers import serve

Contest = Callable[[], dict[str, Any]]
Weights = dict[str, np.ndarray]
CLASSES = 10
LEARNING_RATE, MOMENTUM = 1e-4, 0.9


def images(settings: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(settings["rows"], 32, 32, 3)).astype(np.float32), rng.integers(0, CLASSES, settings["rows"])


def texts(settings: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    rng, rows = np.random.default_rng(0), settings["rows"]
    return rng.integers(0, settings["vocabulary"], (rows, 100)).astype(np.int32), rng.integers(0, 2, rows)


def resnet_blocks(width: int) -> list[tuple[str, int, int, int]]:
    """(name, channels in, channels out, stride)."""
    found, channels = [], width
    for stage in range(3):
        for block in range(3):
            found.append((f"stage_{stage}_block_{block}", channels, width * 2**stage, 2 if stage and not block else 1))
            channels = width * 2**stage
    return found


def resnet_weights(width: int) -> Weights:
    rng = np.random.default_rng(1)
    weights: Weights = {}

    def unit(name: str, window: int, channels: int, filters: int) -> None:
        scale = np.sqrt(2 / (window * window * channels))
        weights[f"{name}/conv/weight"] = rng.normal(size=(window, window, channels, filters)) * scale
        weights[f"{name}/conv/bias"] = rng.normal(size=filters) * 0.1
        for part, mean in (("scale", 1.0), ("shift", 0.0), ("threshold", -0.5)):
            weights[f"{name}/norm/{part}"] = mean + rng.normal(size=filters) * 0.1

    unit("stem", 3, 3, width)
    for name, channels, filters, stride in resnet_blocks(width):
        unit(f"{name}/unit_0", 3, channels, filters)
        unit(f"{name}/unit_1", 3, filters, filters)
        if stride > 1:
            unit(f"{name}/shortcut", 1, channels, filters)
    weights["head/weight"] = rng.normal(size=(4 * width, CLASSES)) / np.sqrt(4 * width)
    weights["head/bias"] = np.zeros(CLASSES)
    return {name: value.astype(np.float32) for name, value in weights.items()}


def text_weights(vocabulary: int) -> Weights:
    rng = np.random.default_rng(1)
    shapes = {
        "embedding/weight": (vocabulary, 128),
        "conv/weight": (5, 128, 64),
        "conv/bias": (64,),
        "lstm/input/weight": (64, 512),
        "lstm/input/bias": (512,),
        "lstm/state/weight": (128, 512),
        "head/weight": (128, 2),
        "head/bias": (2,),
    }
    scales = {name: 1.0 if name.startswith("embedding") else 1 / np.sqrt(np.prod(s[:-1])) for name, s in shapes.items()}
    return {name: (rng.normal(size=s) * scales[name]).astype(np.float32) for name, s in shapes.items()}


def timed(run: Callable[[int], Any], settings: dict[str, Any]) -> dict[str, float]:
    """Time of one of so many steps: what a run with a fifth more takes longer than that fifth, so that what is done
    once in a run cancels."""

    def seconds(steps: int) -> tuple[float, float]:
        began, began_processor = time.perf_counter(), time.process_time()
        run(steps)
        return time.perf_counter() - began, time.process_time() - began_processor

    short = max(1, settings["steps"] // 5)
    few, many = seconds(short), seconds(short + settings["steps"])
    wall, processor = ((long - brief) / settings["steps"] for long, brief in zip(many, few, strict=True))
    return {"ms": 1e3 * wall, "processor_ms": 1e3 * processor}


def posterity_steps(network: Any, classes: int, weights: Weights, data: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
    """A function that takes so many steps of SGD with momentum in `fit`; the loss of the first rows; compile time."""
    import jax.numpy as jnp
    import optax

    from posterity import MAP, Categorical, Model, Normal, fit

    nested: dict[str, Any] = {}
    for name, value in weights.items():
        *folders, last = name.split("/")
        place = nested
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    model = Model(network, Categorical(classes), Normal(0.0, 1.0))
    optimizer = optax.sgd(LEARNING_RATE, MOMENTUM)

    def run(steps: int) -> None:
        method = MAP(num_steps=steps, batch_size=batch, optimizer=optimizer, start=nested)
        assert fit(model, method, data, progress=False).receipt.num_steps == steps

    def seconds() -> float:
        began = time.perf_counter()
        run(1)
        return time.perf_counter() - began

    x, y = (jnp.asarray(part[:80]) for part in data)
    loss = -model.log_likelihood_of(model.network.apply(nested, x), y).mean()
    return run, {"loss": float(loss), "compile_seconds": seconds() - seconds()}


def posterity_resnet(settings: dict[str, Any]) -> Contest:
    from posterity import resnet20

    width = settings["width"]
    run, facts = posterity_steps(
        resnet20(CLASSES, width=width), CLASSES, resnet_weights(width), images(settings), "full"
    )
    return lambda: {**timed(run, settings), **facts}


def posterity_text(settings: dict[str, Any]) -> Contest:
    from posterity import cnn_lstm

    weights, network = text_weights(settings["vocabulary"]), cnn_lstm(2, vocabulary=settings["vocabulary"])
    run, facts = posterity_steps(network, 2, weights, texts(settings), settings["batch"])
    return lambda: {**timed(run, settings), **facts}


def torch_resnet(settings: dict[str, Any]) -> Contest:
    """Gradients alone: no step is taken with them."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    torch.set_num_threads(settings["cores"])
    layout = torch.channels_last if settings["channels_last"] else torch.contiguous_format
    params = {}
    for name, value in resnet_weights(settings["width"]).items():
        tensor = torch.tensor(value)
        if name.endswith("conv/weight"):
            tensor = tensor.permute(3, 2, 0, 1).contiguous(memory_format=layout)
        elif "/norm/" in name:
            tensor = tensor.reshape(1, -1, 1, 1)
        params[name] = tensor.requires_grad_()
    pixels, labels = images(settings)
    x = torch.tensor(pixels).permute(0, 3, 1, 2).contiguous(memory_format=layout)
    y = torch.tensor(labels)

    def unit(name: str, x: Any, stride: int = 1) -> Any:
        weight = params[f"{name}/conv/weight"]
        x = F.conv2d(x, weight, params[f"{name}/conv/bias"], stride, weight.shape[-1] // 2)
        scale = params[f"{name}/norm/scale"] * torch.rsqrt(x.square().mean((2, 3), keepdim=True) + 1e-6)
        return torch.maximum(x * scale + params[f"{name}/norm/shift"], params[f"{name}/norm/threshold"])

    def network(x: Any) -> Any:
        x = F.silu(unit("stem", x))
        for name, _, _, stride in resnet_blocks(settings["width"]):
            made = unit(f"{name}/unit_1", F.silu(unit(f"{name}/unit_0", x, stride)))
            x = F.silu(made + (unit(f"{name}/shortcut", x, stride) if stride > 1 else x))
        return x.mean((2, 3)) @ params["head/weight"] + params["head/bias"]

    def run(steps: int) -> None:
        for _ in range(steps):
            for tensor in params.values():
                tensor.grad = None
            F.cross_entropy(network(x), y).backward()

    with torch.no_grad():
        loss = float(F.cross_entropy(network(x[:80]), y[:80]))
    return lambda: {**timed(run, settings), "loss": loss}


def torch_text(settings: dict[str, Any]) -> Contest:
    import torch
    import torch.nn.functional as F  # noqa: N812
    from torch import nn

    torch.set_num_threads(settings["cores"])
    weights = {name: torch.tensor(value) for name, value in text_weights(settings["vocabulary"]).items()}
    gates = weights["lstm/input/bias"].clone()
    gates[128:256] += 1.0  # ours adds one to the forget gate

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(settings["vocabulary"], 128)
            self.conv, self.lstm = nn.Conv1d(128, 64, 5), nn.LSTM(64, 128, batch_first=True)
            self.head = nn.Linear(128, 2)

        def forward(self, x: Any) -> Any:
            features = F.max_pool1d(F.relu(self.conv(self.embedding(x).transpose(1, 2))), 4)
            return self.head(self.lstm(features.transpose(1, 2))[0][:, -1])

    network = Net()
    ours = {
        "embedding.weight": weights["embedding/weight"],
        "conv.weight": weights["conv/weight"].permute(2, 1, 0),
        "conv.bias": weights["conv/bias"],
        "lstm.weight_ih_l0": weights["lstm/input/weight"].T,
        "lstm.weight_hh_l0": weights["lstm/state/weight"].T,
        "lstm.bias_ih_l0": gates,
        "lstm.bias_hh_l0": torch.zeros(512),
        "head.weight": weights["head/weight"].T,
        "head.bias": weights["head/bias"],
    }
    network.load_state_dict(ours)
    tokens, labels = texts(settings)
    x, y = torch.tensor(tokens), torch.tensor(labels)
    decay = 1 / len(y)  # the prior N(0, 1), per datum
    optimizer = torch.optim.SGD(network.parameters(), LEARNING_RATE, MOMENTUM, weight_decay=decay)
    with torch.no_grad():
        loss = float(F.cross_entropy(network(x[:80]), y[:80]))

    def batches() -> Iterator[Any]:
        while True:
            yield from torch.randperm(len(y)).split(settings["batch"])

    def run(steps: int) -> None:
        for rows in itertools.islice(batches(), steps):
            optimizer.zero_grad()
            F.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()

    return lambda: {**timed(run, settings), "loss": loss}


CONTESTANTS: dict[str, Callable[[dict[str, Any]], Contest]] = {
    "posterity_resnet": posterity_resnet,
    "posterity_text": posterity_text,
    "torch_resnet": torch_resnet,
    "torch_text": torch_text,
}

if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    serve(CONTESTANTS[chosen["contestant"]](chosen))
