"""What may be wrong with a fit although it came to its end: found, warned of, and kept in its receipt.

Before it begins: inputs and targets whose spread float32 does not hold, and targets far beyond a noise that is fixed.
After it: a loss that ended above where it began, and chains that have not converged. Chains are judged by the log joint
that they recorded, and where rows are held out also by what they predict there, as `diagnose` does.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import jax
import numpy as np

from posterity.core import pytrees
from posterity.core.concern import ConvergenceWarning
from posterity.core.devices import precision
from posterity.data.arrays import Dataset, evenly_spaced
from posterity.inference.engine.job import Job
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model
from posterity.models.units import without_units
from posterity.posterior.diagnose import density_parts, has_chains
from posterity.posterior.diagnosis import USABLE
from posterity.posterior.posterior import Posterior
from posterity.posterior.trace import Trace

DIAGNOSED_ROWS = 100
LOST = 0.1  # share of a column's spread that rounding may take
FAR = 1e4  # standard deviations of the noise that targets may be large on average
RISE = 0.05  # of the loss: less is the noise of batches
FEWEST_STRIDES = 4
REMEDY = (
    "Run more burn-in and draws, give a budget and until='usable', or use a method without chains, such as a deep "
    "ensemble; posterior.diagnose(x) reports what is missing."
)


def warn_of_rows(rows: Dataset, model: Model) -> None:
    """Before time is spent on them."""
    for message in _of_rows(rows, model):
        warnings.warn(message, stacklevel=3)


def with_warnings(posterior: Posterior, job: Job, losses: tuple[str, ...]) -> Posterior:
    """The posterior with what may be wrong in its receipt; what the fit itself shows is warned of."""
    posterior = noted(posterior, _of_rows(job.rows, job.model))
    return warned(posterior, (*losses, *_of_chains(posterior, job)))


def warned(posterior: Posterior, messages: tuple[str, ...]) -> Posterior:
    """Warn of what shows that a fit has not converged, and keep it in the receipt."""
    for message in messages:
        warnings.warn(message, ConvergenceWarning, stacklevel=4)
    return noted(posterior, messages)


def noted(posterior: Posterior, messages: tuple[str, ...]) -> Posterior:
    receipt = posterior.receipt
    return dataclasses.replace(posterior, receipt=dataclasses.replace(receipt, warnings=(*receipt.warnings, *messages)))


def of_loss(method: str, trace: Trace) -> tuple[str, ...]:
    """A descent whose loss over the last tenth of its strides is above the first."""
    if "loss" not in trace or trace["loss"].shape[1] < FEWEST_STRIDES:
        return ()
    loss = trace["loss"].astype(float)
    tenth = max(1, loss.shape[1] // 10)
    first, last, noise = loss[:, 0], loss[:, -tenth:].mean(1), loss[:, -tenth:].std(1)
    size = np.maximum(np.abs(first), 1.0)
    risen = last > first + RISE * size + 3 * np.minimum(noise, size)  # what a first batch may be off by
    if not risen.any():
        return ()
    worst = int(np.argmax(np.where(risen, last - first, -np.inf)))
    return (
        f"{method} has not converged: the loss of chain {worst} was {first[worst]:.4g} at first and {last[worst]:.4g} "
        "at last. Lower learning_rate, and scale inputs and targets to about unit size.",
    )


def _of_chains(posterior: Posterior, job: Job) -> tuple[str, ...]:
    for part in density_parts(posterior).values():
        if part.verdict == "not converged":
            where = "still drifts" if part.missing == "burn-in" else f"has an R-hat of {np.nanmax(part.r_hat):.3g}"
            return (f"The chains have not converged: their log joint {where}. {REMEDY}",)
    return () if job.calibration is None else of_predictions(posterior, job.calibration)


def of_predictions(posterior: Posterior, x: Any) -> tuple[str, ...]:
    """Chains that disagree on what they predict at some of the rows x; nothing where there are none to judge."""
    if not has_chains(posterior):
        return ()
    found = posterior.diagnose(pytrees.take_rows(x, evenly_spaced(pytrees.num_rows(x), DIAGNOSED_ROWS)))
    if found.verdict != "not converged":
        return ()
    share, largest = 100 * found.share_under(USABLE), np.nanmax(found.r_hat_of_inputs, initial=1.0)
    return (
        f"The chains have not converged: R-hat is under {USABLE} at {share:.0f} % of {len(found.r_hat)} inputs, and "
        f"{largest:.3g} at most. {REMEDY}",
    )


def _of_rows(rows: Dataset, model: Model) -> tuple[str, ...]:
    likelihood, shift, scale = without_units(model.likelihood)
    found = []
    for name, leaf in zip(pytrees.leaf_names(rows.x), jax.tree.leaves(rows.x), strict=True):
        lost = _lost(leaf) if np.ndim(leaf) == 2 else np.zeros(0, bool)
        if lost.any():
            where = f"column {int(np.argmax(lost))}" + (f" of {name}" if name else "")
            found.append(
                f"The inputs vary less than {precision()} can hold, {lost.sum()} column(s) of them, the first "
                f"{where}: subtract each column's mean and divide by its standard deviation."
            )
    if likelihood.kind != "continuous":
        return tuple(found)
    targets = (rows.y.reshape(len(rows.y), -1).astype(float) - shift) / scale
    targets = targets[np.isfinite(targets).all(1)]  # a bound of a censored one may be infinite
    if not len(targets):
        return tuple(found)
    if _lost(targets).any():
        found.append(f"The targets vary less than {precision()} can hold: standardise them, or use Rescaled(...).")
    size = float(np.sqrt(np.mean(np.square(targets))))
    noise = float(likelihood.scale) if isinstance(likelihood, Gaussian) else np.inf
    if size > FAR * noise:
        found.append(
            f"The targets are about {size:.3g} large, {size / noise:.2g} times the noise that is fixed at {noise:.3g}: "
            "standardise them, or learn the noise."
        )
    return tuple(found)


def _lost(values: np.ndarray) -> np.ndarray:
    """Columns [F] of which rounding takes more than a tenth of their standard deviation."""
    if values.dtype.kind != "f" or len(values) < 2:
        return np.zeros(values.shape[1], bool)
    held = values.astype(jax.dtypes.canonicalize_dtype(float)).astype(values.dtype)
    spread = (values - values[:1]).std(0)
    return (values - held).std(0) > LOST * spread
