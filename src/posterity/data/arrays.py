"""Arrays as the user gave them, checked once at the boundary: errors are raised here, not inside a traced program."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from posterity.core import pytrees
from posterity.core.checks import is_number
from posterity.core.types import Batch
from posterity.models.censored import Censored
from posterity.models.heads import Heads
from posterity.models.likelihoods import Likelihood, class_probs

LARGEST_COUNT = int(np.iinfo(np.int32).max)
STREAMS = {"holdout": 7, "validation": 10}  # of random numbers: what is set aside for one is not what is for the other


class Dataset(NamedTuple):
    """Rows on the host: inputs (a pytree with a common leading axis), targets, weights of rows."""

    x: Any
    y: np.ndarray  # [N, ...]
    weight: np.ndarray  # [N]

    @property
    def num_rows(self) -> int:
        return len(self.y)

    def take(self, rows: np.ndarray) -> Dataset:
        return Dataset(*pytrees.take_rows(tuple(self), rows))

    def batch(self) -> Batch:
        """All rows as one batch on the device."""
        return Batch(jax.tree.map(jnp.asarray, self.x), jnp.asarray(self.y), jnp.asarray(self.weight))


def check_inputs(x: Any, name: str = "x") -> Any:
    """Inputs as numpy arrays of numbers with a common, non-zero number of finite rows."""
    arrays = jax.tree.map(lambda leaf: check_numbers(leaf, name), x, is_leaf=_is_array)
    leaves = jax.tree.leaves(arrays)
    if not leaves:
        raise ValueError(f"{name} is empty: no array in it.")
    lengths = {leaf.shape[0] if leaf.ndim else -1 for leaf in leaves}
    if -1 in lengths:
        raise ValueError(f"{name} is a single number; expected an array whose first axis counts rows.")
    if len(lengths) > 1:
        raise ValueError(f"The arrays of {name} have different numbers of rows: {sorted(lengths)}; make them agree.")
    if lengths == {0}:
        raise ValueError(f"{name} has no rows; give at least one.")
    return arrays


def check_like(x: Any, training: Any, name: str = "x") -> None:
    """Checked inputs must have rows of the shape of those trained on."""
    got, wanted = (jax.tree.map(lambda leaf: leaf.shape[1:], rows) for rows in (x, training))
    if got != wanted:
        hint = "; give inputs alone, without targets" if name == "holdout" and isinstance(x, tuple) else ""
        raise ValueError(f"{name} has rows of shape {got}; the model is trained on rows of shape {wanted}{hint}.")


def dataset(data: Any, likelihood: Any = None) -> Dataset:
    """Check (x, y) or (x, y, weight), and drop rows of weight 0.

    Where a likelihood is given, check that it can have produced the targets.
    """
    if isinstance(data, Dataset):
        return data
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        got = f"a {type(data).__name__} of {len(data)}" if isinstance(data, tuple | list) else type(data).__name__
        raise TypeError(f"data is {got}; expected a tuple (x, y) or (x, y, weight).")
    x = check_inputs(data[0])
    y = read_targets(data[1], likelihood)
    rows = pytrees.num_rows(x)
    for leaf in jax.tree.leaves(y):
        if leaf.ndim == 0 or len(leaf) != rows:
            count = len(leaf) if leaf.ndim else "none"
            raise ValueError(f"x has {rows} rows and y has {count}; they must match row by row.")
    weight = np.ones(rows) if len(data) == 2 else check_numbers(data[2], "weight").astype(float)
    if weight.shape != (rows,) or (weight < 0).any() or weight.sum() == 0:
        raise ValueError(f"weight must hold one number >= 0 for each of the {rows} rows, not all zero.")
    # A row of weight 0 is no row: a value that only fills its place would become 0 times infinity in a sum.
    counts = weight > 0
    x, y, weight = (x, y, weight) if counts.all() else pytrees.take_rows((x, y, weight), counts)
    if likelihood is not None:
        y = check_targets(y, likelihood)
    return Dataset(x, y, weight)


def holdout_split(data: Dataset, share: float, seed: int, name: str) -> tuple[Dataset, Dataset]:
    """(kept, set aside): a random share of the rows, the same for the same seed and name in STREAMS."""
    kept, aside = split_places(data.num_rows, share, seed, name)
    return data.take(kept), data.take(aside)


def split_places(num_rows: int, share: float, seed: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Where the rows are that are kept, and those that are set aside."""
    if not 0 < share < 1:
        raise ValueError(f"{name}={share} must lie strictly between 0 and 1: the share of rows to set aside.")
    num_aside = round(float(share) * num_rows)
    if num_aside < 1 or num_aside >= num_rows:
        raise ValueError(f"{name}={share} of {num_rows} rows leaves an empty side; choose another share.")
    order = np.random.default_rng([seed, STREAMS[name]]).permutation(num_rows)
    return np.sort(order[num_aside:]), np.sort(order[:num_aside])


def calibration_inputs(rows: Dataset, holdout: Any, seed: int) -> tuple[Dataset, Any, Dataset | None]:
    """(rows to fit, inputs to calibrate by, these with their targets where they are known).

    They are a share of the rows, which is taken away, or those that are given: inputs, or a `Dataset`.
    """
    if holdout is None:
        return rows, None, None
    if _is_share(holdout):
        kept, aside = holdout_split(rows, holdout, seed, "holdout")
        return kept, aside.x, aside
    inputs = check_inputs(holdout.x if isinstance(holdout, Dataset) else holdout, "holdout")
    check_like(inputs, rows.x, "holdout")
    return rows, inputs, holdout if isinstance(holdout, Dataset) else None


def stopping_rows(rows: Dataset, validation: Any, seed: int, likelihood: Any) -> tuple[Dataset, Dataset | None]:
    """(rows to fit, rows to stop by): a share of the rows, which is taken away, or those that are given."""
    if validation is None:
        return rows, None
    if _is_share(validation):
        return holdout_split(rows, validation, seed, "validation")
    given = dataset(validation, likelihood)
    check_like(given.x, rows.x, "validation")
    return rows, given


def _is_share(value: Any) -> bool:
    """A number, or a truth value, which is no share and is told so as such."""
    return is_number(value) or isinstance(value, bool)


def diagnosed_inputs(given: Any, rows: Dataset, held_out: Any, most: int = 100) -> Any:
    """Inputs to diagnose chains at: those given, else those held out, else at most so many of the rows."""
    if given is None:
        inputs = rows.x if held_out is None else held_out
        count = jax.tree.leaves(inputs)[0].shape[0]
        return jax.tree.map(lambda leaf: np.asarray(leaf)[evenly_spaced(count, most)], inputs)
    inputs = check_inputs(given)
    check_like(inputs, rows.x, "at")
    return inputs


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """Places of at most so many of `count` rows or strides, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _is_array(value: Any) -> bool:
    """What becomes one array: a list too, which numpy reads as rows, and what JAX does not know for a container."""
    return isinstance(value, list) or jax.tree_util.all_leaves([value])


def check_numbers(value: Any, name: str) -> np.ndarray:
    """One array of finite numbers that the device has room for."""
    check_unmasked(value, name)
    if hasattr(value, "toarray"):
        raise TypeError(f"{name} is sparse ({type(value).__name__}); networks read dense rows: give {name}.toarray().")
    try:
        array = np.asarray(value)
    except ValueError as error:  # a ragged list
        raise ValueError(
            f"{name} holds a list whose parts have different shapes; a list is read as the rows of one array. Give "
            "several arrays as a tuple or a dictionary, each with all rows."
        ) from error
    if array.dtype == object or array.dtype.kind in "USmM":
        raise TypeError(f"{name} holds {_not_numbers(value, array, name)}.")
    if array.dtype.kind == "c":
        raise TypeError(
            f"{name} holds complex numbers (dtype {array.dtype}); give real ones: np.abs({name}), or {name}.real and "
            f"{name}.imag side by side."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))
        raise ValueError(
            f"{name} has {len(bad)} NaN or infinite value(s), the first at index {tuple(map(int, bad[0]))}; "
            "remove those rows or fill them in."
        )
    check_size(array, name)
    return array.astype(np.int32) if array.dtype.kind == "b" else _unwrapped(array)


def check_unmasked(value: Any, name: str) -> None:
    """Refuse masked values: numpy would go on with what lies under the mask."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(
            f"{name} has {np.ma.count_masked(value)} masked value(s); remove those rows, or fill them in with "
            f"{name}.filled(...)."
        )


def check_size(array: np.ndarray, name: str) -> None:
    """Refuse finite numbers that would be infinite on the device."""
    held = jax.dtypes.canonicalize_dtype(float)
    most = float(np.finfo(held).max)
    if array.dtype.kind != "f" or np.finfo(array.dtype).max <= most:
        return
    large = np.isfinite(array) & (np.abs(array) > most)
    if large.any():
        first = tuple(map(int, np.argwhere(large)[0]))
        raise ValueError(
            f"{name} has values beyond {most:.2g}, the largest number of {held.name}, such as {array[first]:.6g} at "
            f"index {first}; rescale {name}."
        )


def _not_numbers(value: Any, array: np.ndarray, name: str) -> str:
    """What an array holds instead of numbers, and what to do about it."""
    if array.dtype == object and hasattr(value, "to_numpy"):
        with suppress(ValueError, TypeError):
            value.to_numpy(float)
            return f"numbers as objects, as nullable columns of pandas do; give {name}.to_numpy(float)"
    kind = "dates" if array.dtype.kind in "mM" else "text or mixed values"
    remedy = "each column into numbers first, for instance with pandas.get_dummies for categories"
    if name == "y":
        remedy = "labels into 0, 1, 2, ..., for instance with numpy.unique(y, return_inverse=True)[1]"
    return f"{kind} (dtype {array.dtype}); turn {remedy}"


def _unwrapped(array: np.ndarray) -> np.ndarray:
    """Whole numbers that the device, which has 32 bits for them, would wrap around, as floats."""
    if array.dtype.kind not in "iu" or not array.size:
        return array
    held = np.iinfo(jax.dtypes.canonicalize_dtype(array.dtype))
    return array if held.min <= array.min() and array.max() <= held.max else array.astype(float)


def read_targets(y: Any, likelihood: Likelihood | None, name: str = "y") -> Any:
    """Targets as arrays of numbers: a dict of them for several heads, pairs of bounds for a censored one."""
    if isinstance(likelihood, Heads):
        if not isinstance(y, dict) or set(y) != set(likelihood.names):
            got = f"a dict of {', '.join(map(str, y))}" if isinstance(y, dict) else type(y).__name__
            wanted = ", ".join(f"{head!r}: ..." for head in likelihood.names)
            raise TypeError(f"{name} is {got}; expected the targets of each head, {{{wanted}}}.")
        return {head: read_targets(y[head], own, f"{name}[{head!r}]") for head, own in likelihood.items()}
    if isinstance(y, dict):
        raise TypeError(f"{name} is a dict of {', '.join(map(str, y))}; expected one array, or Heads as likelihood.")
    return _read_bounds(y, name) if isinstance(likelihood, Censored) else check_numbers(y, name)


def _read_bounds(y: Any, name: str) -> np.ndarray:
    """Pairs [N, ..., 2] of bounds, which may be infinite; numbers without them were observed."""
    check_unmasked(y, name)
    pairs = np.asarray(y, dtype=float)
    if pairs.ndim < 2 or pairs.shape[-1] != 2:
        return np.repeat(check_numbers(y, name).astype(float)[..., None], 2, -1)
    lower, upper = pairs[..., 0], pairs[..., 1]
    wrong = ~(lower <= upper) | (np.isinf(lower) & np.isinf(upper))
    if wrong.any():
        first = tuple(map(int, np.argwhere(wrong)[0]))
        raise ValueError(
            f"{name} holds the bounds {pairs[first].tolist()} at {first}; expected lower <= upper with at least one of "
            "them finite: equal where the number was observed, -inf or inf where there is no bound."
        )
    return pairs


def check_targets(y: Any, likelihood: Likelihood, some: bool = False) -> np.ndarray:
    """Targets that the likelihood can have produced, in one array; `some`: of a few of the rows."""
    if isinstance(likelihood, Heads):
        return join_targets({name: check_targets(y[name], head, some) for name, head in likelihood.items()}, likelihood)
    return _check_target(y, likelihood, some)


def join_targets(targets: dict[str, np.ndarray], heads: Heads) -> np.ndarray:
    """Targets of several heads side by side, [N, ..., T]."""
    wide = [targets[name] if _example_event(head) else targets[name][..., None] for name, head in heads.items()]
    if len({part.shape[:-1] for part in wide}) > 1:
        shapes = {name: part.shape for name, part in targets.items()}
        raise ValueError(f"The targets of the heads have shapes {shapes}; a row must have as many places in each.")
    return np.concatenate([part.astype(float) for part in wide], -1)


def split_targets(joined: np.ndarray, heads: Heads) -> dict[str, np.ndarray]:
    """The numbers of each head, of targets that were observed; what `join_targets` made one array of."""
    found, first = {}, 0
    for name, head in heads.items():
        event = _example_event(head)
        own = joined[..., first : first + (event[0] if event else 1)]
        first += own.shape[-1]
        own = own if event and not isinstance(head, Censored) else own[..., 0]
        found[name] = own if head.kind == "continuous" else own.astype(np.int32)
    return found


def _check_target(y: np.ndarray, likelihood: Likelihood, some: bool) -> np.ndarray:
    if y.ndim == 2 and y.shape[1] == 1 and _example_event(likelihood) == ():
        y = y[:, 0]
    if likelihood.kind == "continuous":
        return y.astype(float)
    wrong = y[(y != np.round(y)) | (y < 0)]
    if wrong.size:
        what = "class labels 0, 1, 2, ..." if likelihood.kind == "classes" else "counts 0, 1, 2, ..."
        raise ValueError(f"{type(likelihood).__name__} takes {what}; y has values such as {wrong[0]}.")
    if (y > LARGEST_COUNT).any():
        raise ValueError(f"y has the count {y.max():.6g}; the largest that can be held is {LARGEST_COUNT}: rescale y.")
    if likelihood.kind == "classes":
        found = np.unique(y)
        if len(found) < 2 and not some:
            raise ValueError(f"y holds one class only ({found[0]}); a classifier needs at least two.")
        num_classes = _num_classes(likelihood)
        if found[-1] >= num_classes:
            raise ValueError(
                f"y has the label {int(found[-1])}, but {type(likelihood).__name__} has {num_classes} classes "
                f"(0 .. {num_classes - 1}); raise its number of classes or relabel."
            )
    return y.astype(np.int32)


def _example_event(likelihood: Likelihood) -> tuple[int, ...]:
    """The shape of one row's target."""
    return jax.eval_shape(lambda: _example(likelihood).sample(jax.random.key(0))).shape[1:]


def _num_classes(likelihood: Likelihood) -> int:
    return jax.eval_shape(lambda: class_probs(_example(likelihood))).shape[-1]


def _example(likelihood: Likelihood) -> dist.Distribution:
    """Of one row whose outputs are 0."""
    columns = likelihood.columns(likelihood.init())
    width = likelihood.num_outputs + (0 if columns is None else columns.shape[0])
    return likelihood(jnp.zeros((1, width)))
