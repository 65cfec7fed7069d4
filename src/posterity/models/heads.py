"""Several likelihoods of one network: a row has a target for each head, and log p(y) is their sum.

Inside, outputs and targets are single arrays, with the heads one after the other along the last axis:

    outputs [..., K]   those of the network by head, then the constant columns of likelihoods with parameters, by head
    targets [..., T]   as numbers, whatever the head makes of them
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from posterity.core import records
from posterity.core.types import Array, Network
from posterity.models.censored import Censored
from posterity.models.likelihoods import Kind, Likelihood
from posterity.models.units import Rescaled


@records.record
class Heads(Likelihood):
    """Several targets of different kinds: `Heads(kind=Categorical(3), size=HeteroscedasticGaussian())`.

    The network gives a dict of outputs with these names, {"kind": [N, 3], "size": [N, 2]}, or one array whose columns
    are those of the heads in this order. Targets are a dict with the same names. Given the outputs, heads are
    independent; `prediction["kind"]` is the prediction of one.

    Args:
        names: Of the heads; left out where they are given by name.
        likelihoods: Of each; left out likewise.
    """

    kind = "heads"
    names: tuple[str, ...] = ()
    likelihoods: tuple[Likelihood, ...] = records.traced(default=())

    def __init__(
        self, names: tuple[str, ...] = (), likelihoods: tuple[Likelihood, ...] = (), **heads: Likelihood
    ) -> None:
        given = {**dict(zip(names, likelihoods, strict=True)), **heads} if isinstance(names, tuple) else {}
        object.__setattr__(self, "names", tuple(given))
        object.__setattr__(self, "likelihoods", tuple(given.values()))
        if not given:
            raise ValueError("Heads() has no head; give one by name, such as Heads(kind=Categorical(3)).")
        for name, head in given.items():
            if not isinstance(head, Likelihood) or isinstance(head, Heads):
                raise TypeError(f"Heads({name}={head!r}): expected a likelihood, such as {name}=Gaussian(0.1).")

    def __repr__(self) -> str:
        return f"Heads({', '.join(f'{name}={head!r}' for name, head in self.items())})"

    def items(self) -> list[tuple[str, Likelihood]]:
        """Each name with its likelihood."""
        return list(zip(self.names, self.likelihoods, strict=True))

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        return sum(head.num_outputs for head in self.likelihoods)

    def head(self, name: str) -> Likelihood:
        """The likelihood of one head, which reads the outputs of all."""
        if name not in self.names:
            raise KeyError(f"There is no head {name!r}; the heads are {', '.join(self.names)}.")
        number = self.names.index(name)
        found = self.likelihoods[number]
        if not isinstance(found, Rescaled | Censored):
            return OneHead(self, number)
        # Units and bounds stay outermost, where predictions look for them.
        others = (*self.likelihoods[:number], found.likelihood, *self.likelihoods[number + 1 :])
        return records.replace(found, likelihood=records.replace(self, likelihoods=others).head(name))

    def __call__(self, outputs: Array) -> dist.Distribution:
        parts = [head(outputs[..., own]) for head, own in zip(self.likelihoods, self.places(), strict=True)]
        return HeadsDistribution(tuple(parts), tuple(head.kind for head in self.likelihoods))

    def init(self) -> dict[str, Any]:
        return {name: own for name, head in self.items() if (own := head.init())}

    def priors(self) -> dict[str, dist.Distribution]:
        return {f"{name}/{own}": prior for name, head in self.items() for own, prior in head.priors().items()}

    def columns(self, parameters: dict[str, Any]) -> Array | None:
        found = [head.columns(parameters.get(name, {})) for name, head in self.items()]
        there = [part for part in found if part is not None]
        return jnp.concatenate(there) if there else None

    def fisher(self, outputs: Array) -> Array:
        return self._blocks(outputs, lambda head, own, _: head.fisher(own))

    def information(self, outputs: Array, y: Array) -> Array:
        targets = self(outputs).split(y)  # type: ignore[attr-defined]
        return self._blocks(outputs, lambda head, own, number: head.information(own, targets[number]))

    def places(self) -> list[np.ndarray]:
        """Which of the outputs belong to each head."""
        first, column, found = 0, self.num_outputs, []
        for head in self.likelihoods:
            own = head.columns(head.init())
            extra = 0 if own is None else own.shape[0]
            found.append(np.r_[first : first + head.num_outputs, column : column + extra])
            first, column = first + head.num_outputs, column + extra
        return found

    def _blocks(self, outputs: Array, information: Callable[[Likelihood, Array, int], Array]) -> Array:
        """A matrix of all outputs, from those of each head."""
        made = jnp.zeros((*outputs.shape, outputs.shape[-1]), outputs.dtype)
        for number, (head, own) in enumerate(zip(self.likelihoods, self.places(), strict=True)):
            made = made.at[..., own[:, None], own[None, :]].set(information(head, outputs[..., own], number))
        return made


@records.record
class OneHead(Likelihood):
    """One head of several, on the outputs of all of them."""

    heads: Heads = records.traced()
    number: int = 0

    def describe(self) -> str:
        return self._own.describe()

    @property
    def _own(self) -> Likelihood:
        return self.heads.likelihoods[self.number]

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        return self._own.kind

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        return self.heads.num_outputs

    @property
    def has_marginal(self) -> bool:  # type: ignore[override]
        return self._own.has_marginal

    def __call__(self, outputs: Array) -> dist.Distribution:
        return self._own(outputs[..., self._places])

    def init(self) -> dict[str, Any]:
        return self.heads.init()

    def priors(self) -> dict[str, dist.Distribution]:
        return self.heads.priors()

    def columns(self, parameters: dict[str, Any]) -> Array | None:
        return self.heads.columns(parameters)

    def marginal(self, mean: Array, covariance: Array) -> dist.Distribution:
        return self._own.marginal(mean[..., self._places], self._block(covariance))

    def mean_variance(self, covariance: Array) -> Array:
        return self._own.mean_variance(self._block(covariance))

    @property
    def _places(self) -> np.ndarray:
        return self.heads.places()[self.number]

    def _block(self, covariance: Array) -> Array:
        return covariance[..., self._places[:, None], self._places[None, :]]


class HeadsDistribution(dist.Distribution):
    """Independent parts, whose targets stand side by side in one array."""

    pytree_data_fields = ("parts",)
    pytree_aux_fields = ("kinds",)
    support = dist.constraints.real_vector  # type: ignore[assignment]

    def __init__(self, parts: tuple[dist.Distribution, ...], kinds: tuple[Kind, ...]) -> None:
        self.parts, self.kinds = parts, kinds
        super().__init__(parts[0].batch_shape, (sum(map(_width, parts)),), validate_args=False)

    def split(self, value: Array) -> list[Array]:
        """The target of each part, in the shape and the type that it takes."""
        ends = np.cumsum([_width(part) for part in self.parts])
        found = []
        for part, kind, own in zip(self.parts, self.kinds, jnp.split(value, ends[:-1], -1), strict=True):
            own = own if part.event_shape else own[..., 0]
            found.append(own if kind == "continuous" else own.astype(int))
        return found

    def log_prob(self, value: Any, intermediates: Any = None) -> Array:
        del intermediates
        each = [jnp.asarray(part.log_prob(own)) for part, own in zip(self.parts, self.split(value), strict=True)]
        return functools.reduce(jnp.add, each)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Array:
        keys = jax.random.split(key, len(self.parts))
        drawn = [jnp.asarray(part.sample(own, sample_shape)) for part, own in zip(self.parts, keys, strict=True)]
        wide = [d if part.event_shape else d[..., None] for part, d in zip(self.parts, drawn, strict=True)]
        return jnp.concatenate([part.astype(float) for part in wide], -1)


def _width(distribution: dist.Distribution) -> int:
    return distribution.event_shape[0] if distribution.event_shape else 1


def with_joined_outputs(network: Any, heads: Heads) -> Network:
    """The network with outputs by name as one array, heads one after the other; one array stays as it is."""
    widths = tuple((name, head.num_outputs) for name, head in heads.items())
    return Network(network.init, _joined(network.apply, widths), network.fan_in_axis, network.shares_masks)


@functools.cache  # compiled programs are kept by the identity of a network's functions
def _joined(apply: Callable[..., Any], widths: tuple[tuple[str, int], ...]) -> Callable[..., Array]:
    def joined(params: Any, x: Any, key: Any = None) -> Array:
        outputs = apply(params, x, key)
        if not isinstance(outputs, Mapping):
            return outputs
        names = [name for name, _ in widths]
        if set(outputs) != set(names):
            raise ValueError(
                f"The network gives outputs named {', '.join(map(str, outputs))}; the heads are {', '.join(names)}: "
                "use the same names in both."
            )
        shapes = {name: jnp.shape(outputs[name]) for name in names}
        if len({shape[:-1] for shape in shapes.values()}) > 1 or any(shapes[n][-1:] != (k,) for n, k in widths):
            raise ValueError(
                f"The outputs of the heads have shapes {shapes}; expected [N, ..., K] with the same N, ... in all, and "
                f"K of {', '.join(f'{width} for {name}' for name, width in widths)}."
            )
        return jnp.concatenate([outputs[name] for name in names], -1)

    return joined
