"""Graphs of PyTorch modules, with what PyTorch computes, for tests without it; needs the environment of test-torch.

.torch-venv/bin/python tests/networks/record_torch.py
"""

import json
from pathlib import Path

import torch
from torch import nn

from posterity.networks.pytorch.export import export

FOLDER = Path(__file__).with_name("data")


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, 2, 1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding="same", dilation=2, groups=2, bias=False)
        self.groups = nn.GroupNorm(2, 4)
        self.dropout = nn.Dropout2d(0.5)
        self.series = nn.Conv1d(4, 3, 3, padding=1)
        self.fc = nn.Linear(15, 2)

    def forward(self, x):
        x = nn.functional.relu(self.norm(self.first(x)), inplace=True)
        x = x + self.groups(self.second(x))
        x = self.dropout(nn.functional.max_pool2d(x, 2, 1))
        series = self.series(nn.functional.adaptive_avg_pool2d(x, (1, 5)).squeeze(2))
        return self.fc(series.flatten(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.lstm = nn.LSTM(3, 2, 2, batch_first=True, dropout=0.5, bidirectional=True)
        self.gru = nn.GRU(4, 3, batch_first=True)
        self.fc = nn.Linear(3, 2)

    def forward(self, tokens):
        _, last = self.gru(self.lstm(self.embedding(tokens))[0])
        return self.fc(last[-1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, 0.3, "gelu", batch_first=True)
        self.fc = nn.Linear(4, 2)

    def forward(self, tokens, scale):
        hidden = self.layer(self.embedding(tokens) * scale[:, None, None], src_key_padding_mask=tokens == 0)
        return {"classes": self.fc(hidden[:, 0]), "hidden": hidden.mean((1, 2))}


def perceptron():
    parts = nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.25), nn.Linear(4, 4), nn.SiLU(), nn.LayerNorm(4), nn.Linear(4, 2)
    return nn.Sequential(*parts)


def record(name, module, inputs):
    """Weights that differ from their first values, so that no bias is 0 and no norm is 1."""
    module.eval()
    for value in module.state_dict().values():
        if value.is_floating_point():
            value.add_(0.2 * torch.rand_like(value)).mul_(1e3).round_().div_(1e3)
    exported = export(module, tuple(rows[:3] for rows in inputs), dropout=True)
    outputs = module(*inputs)
    outputs = outputs["classes"] if isinstance(outputs, dict) else outputs
    outputs.square().sum().backward()
    slopes = {parameter: value.grad.tolist() for parameter, value in module.named_parameters()}
    content = {
        "graph": json.loads(exported.graph.to_json()),
        "weights": {key: value.tolist() for key, value in exported.weights.items()},
        "constants": {key: value.tolist() for key, value in exported.constants.items()},
        "inputs": [rows.tolist() for rows in inputs],
        "outputs": outputs.tolist(),
        "gradient": slopes,
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    tokens = torch.randint(1, 7, (4, 5))
    tokens[1, 3:] = 0
    record("perceptron", perceptron(), (torch.randn(4, 3).round(decimals=3),))
    record("convolutions", Convolutions(), (torch.randn(4, 2, 8, 9).round(decimals=3),))
    record("recurrent", Recurrent(), (tokens,))
    record("attention", Attention(), (tokens, torch.rand(4).round(decimals=3)))
