"""Five networks in PyTorch: a perceptron, ResNet-18 with GroupNorm and with BatchNorm, an LSTM, a transformer."""

import torch
from torch import nn


def group_norm(channels):
    return nn.GroupNorm(min(8, channels), channels)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = norm(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet18(nn.Module):
    """As in torchvision, of any width."""

    def __init__(self, norm, width=64, num_classes=10, dropout=0.1):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        for i in range(4):
            blocks = (Block(widths[i], widths[i + 1], 1 + (i > 0), norm), Block(widths[i + 1], widths[i + 1], 1, norm))
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(8 * width, num_classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.dropout(torch.flatten(self.avgpool(x), 1)))


class LSTM(nn.Module):
    def __init__(self, vocabulary=20, units=12, num_classes=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, units)
        self.lstm = nn.LSTM(units, units, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.fc = nn.Linear(2 * units, num_classes)

    def forward(self, tokens):
        outputs, _ = self.lstm(self.embedding(tokens))
        return self.fc(outputs[:, -1])


class Transformer(nn.Module):
    def __init__(self, vocabulary=20, width=16, length=8, num_classes=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Parameter(torch.zeros(1, length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, tokens):
        hidden = self.embedding(tokens) + self.position_embedding
        return self.fc(self.encoder(hidden, src_key_padding_mask=tokens == 0).mean(1))


def perceptron(inputs=5, width=20, outputs=2):
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, outputs),
    )


def images(rows):
    return torch.randn(rows, 3, 32, 32), torch.randint(0, 10, (rows,))


def sentences(rows):
    tokens = torch.randint(1, 20, (rows, 8))
    return tokens, (tokens[:, 0] > 10).long()


def points(rows):
    x = torch.randn(rows, 5)
    return x, (x[:, 0] * x[:, 1] > 0).long()


NETWORKS = {
    "perceptron": (perceptron, points),
    "resnet18, group norm": (lambda: ResNet18(group_norm, 8), images),
    "resnet18, batch norm": (lambda: ResNet18(nn.BatchNorm2d, 8), images),
    "lstm": (LSTM, sentences),
    "transformer": (Transformer, sentences),
}


def trained(name, rows=64, steps=5):
    """(module in evaluation mode, inputs, classes), after a few steps of Adam."""
    torch.manual_seed(0)
    build, data = NETWORKS[name]
    module, (x, y) = build(), data(rows)
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module.eval(), x, y
