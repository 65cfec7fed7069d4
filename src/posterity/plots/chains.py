"""Did the samplers arrive? Traces of their chains, and R-hat of what they predict."""

from __future__ import annotations

from typing import Any

import numpy as np

from posterity.data.arrays import evenly_spaced
from posterity.plots.palette import CYCLE, MUTED, name_axes, new_axes
from posterity.posterior.diagnosis import GOOD, USABLE, Diagnosis
from posterity.posterior.posterior import Posterior

MAX_RECORDS = 400  # a chain: more than a picture has room for


def trace(posterior: Posterior, axes: Any = None, name: str = "log_joint") -> Any:
    """A recorded number along the run, one line per chain, burn-in included.

    Look for: lines that lie over each other and no longer drift. The height is cut to what the second half needs.
    """
    if not isinstance(posterior, Posterior):
        raise TypeError(f"trace() got {type(posterior).__name__}; expected what fit returns, a Posterior.")
    axes = new_axes(axes)
    if name not in posterior.trace:
        known = ", ".join(posterior.trace) or "nothing"
        raise ValueError(f"{name!r} was not recorded; this method recorded {known}.")
    values = np.asarray(posterior.trace[name], float)
    shown = evenly_spaced(values.shape[1], MAX_RECORDS)
    done = 100 * (shown + 1) / values.shape[1]
    for chain, line in enumerate(values):
        axes.plot(done, line[shown], color=CYCLE[chain % len(CYCLE)], lw=0.8, alpha=0.85, label=f"chain {chain}")
    later = values[:, values.shape[1] // 2 :]
    later = later[np.isfinite(later)]
    if later.size:
        room = 0.6 * max(np.ptp(later), 1e-6 * max(1.0, np.abs(later).max()))
        axes.set_ylim(later.min() - room, later.max() + room)
    name_axes(axes, "share of the run, %", name.replace("_", " "))
    return axes


def training(posterior: Posterior, axes: Any = None) -> Any:
    """The negative log likelihood per row along the run, mean over chains: of training rows, and of validation rows.

    Look for: a validation loss that rises while the other falls, which is overfitting.
    """
    if not isinstance(posterior, Posterior):
        raise TypeError(f"training() got {type(posterior).__name__}; expected what fit returns, a Posterior.")
    names = {"negative_log_likelihood": "training rows", "validation_loss": "validation rows"}
    lines = {
        label: np.asarray(posterior.trace[name], float) for name, label in names.items() if name in posterior.trace
    }
    if not lines:
        raise ValueError("This method recorded no loss of rows; trace(posterior, name=...) shows what it did record.")
    axes = new_axes(axes)
    for colour, (label, values) in zip(CYCLE, lines.items(), strict=False):
        steps = np.cumsum(posterior.trace.num_steps)
        shown = evenly_spaced(values.shape[1], MAX_RECORDS)
        axes.plot(steps[shown], values.mean(0)[shown], color=colour, lw=1.2, label=label)
    name_axes(axes, "step", "negative log likelihood of a row, nats")
    return axes


def r_hat_curve(diagnosis: Diagnosis, axes: Any = None, **style: Any) -> Any:
    """The share of inputs whose R-hat, of what is predicted there, is at most a value.

    Look for: the whole curve left of the first mark (good), or most of it left of the second (usable).
    """
    axes = new_axes(axes)
    values = np.sort(diagnosis.r_hat_of_inputs)
    values = values[np.isfinite(values)]
    if not axes.lines:
        for limit in (GOOD, USABLE):
            axes.axvline(limit, color=MUTED, lw=0.8, ls=":")
            axes.annotate(f"{limit:g}", (limit, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom",
                          fontsize=7.5, color=MUTED)  # fmt: skip
        axes.set_xlim(0.985, 1.12)
        axes.set_ylim(0, 1.03)
    if values.size:
        axes.step(np.append(values[0], values), np.arange(len(values) + 1) / len(values), where="post", **style)
        axes.set_xlim(right=max(axes.get_xlim()[1], min(values[-1] + 0.02, 2.5)))
    name_axes(axes, "R-hat", "share of inputs up to it")
    return axes
