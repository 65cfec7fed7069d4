"""A model card (Mitchell et al. 2019): one page on a fit of a table, what it is, how far to trust it, its limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from posterity import metrics
from posterity.data.arrays import evenly_spaced
from posterity.posterior.posterior import Posterior
from posterity.prediction.conformal import rows_needed
from posterity.tables.pipeline import TableCode

T = TypeVar("T")

JUDGED_ROWS = 200
SHOWN = 12  # columns, remarks or scores of each list


def model_card(posterior: Posterior, code: TableCode) -> str:
    """The card in Markdown."""
    label = posterior.method.card.label or posterior.receipt.method
    what = "classes" if code.task == "classification" else "a number"
    summary = f"A Bayesian neural network that predicts {what} from the columns of {code.title}."
    sections = {
        f"{label} of {code.target_name}": [summary],
        "Data": _data(posterior, code),
        "Method": _method(posterior),
        "How far to trust it": _trust(posterior),
        "Limits": _limits(posterior),
    }
    parts = []
    for number, (heading, lines) in enumerate(sections.items()):
        parts.append(f"{'#' * min(number + 1, 2)} {heading}\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _data(posterior: Posterior, code: TableCode) -> list[str]:
    held = 0 if posterior.held_out is None else posterior.held_out.num_rows
    lines = [
        f"- {posterior.receipt.num_data:,} rows were trained on, {held:,} were held out.",
        f"- Inputs: {_some(code.inputs.names)}.",
    ]
    if code.labels:
        lines.append(f"- Classes: {_some(code.labels)}.")
    else:
        lines.append(f"- The target is about {code.target.shift:.4g}, give or take {code.target.scale:.3g}.")
    return [*lines, *(f"- {remark}" for remark in _few([*code.target.remarks, *code.inputs.remarks]))]


def _method(posterior: Posterior) -> list[str]:
    receipt = posterior.receipt
    facts = {
        "Method": receipt.method,
        "Likelihood": receipt.likelihood,
        "Prior": receipt.prior,
        "Temperature": receipt.temperature,
        "Size": f"{receipt.num_weights:,} weights, {receipt.num_chains} chain(s), {receipt.num_steps:,} steps each",
        "Time": f"{receipt.seconds:.1f} s on {receipt.devices}, in {receipt.precision}, seed {receipt.seed}",
        "Made with": ", ".join(f"{name} {version}" for name, version in sorted(receipt.versions.items())),
    }
    return [f"- {name}: {value}" for name, value in facts.items()]


def _trust(posterior: Posterior) -> list[str]:
    """The diagnosis of chains, and scores on the rows that were held out."""
    rows = posterior.inputs if posterior.held_out is None else posterior.held_out.x
    diagnosis = posterior.diagnose(np.asarray(rows)[evenly_spaced(len(rows), JUDGED_ROWS)])
    lines = [f"- Convergence: {str(diagnosis).splitlines()[0]}"]
    lines += [f"- **Warning:** {warning}" for warning in posterior.receipt.warnings]
    if posterior.held_out is None:
        return [*lines, "- No rows were held out: nothing here shows how well it predicts. Score it on new rows."]
    scores = metrics.evaluate(posterior.predict(posterior.held_out.x), posterior.held_out.y)
    lines.append(f"- On the {posterior.held_out.num_rows:,} rows held out, with standard errors:")
    lines += [f"    - {metrics.SCORES[name].label}: {score}" for name, score in _few(scores.items())]
    conformal = posterior.conformal()
    if conformal.num_rows >= rows_needed(0.9):
        level, (low, high) = conformal.level(0.9), conformal.coverage_range(0.9)
        lines.append(
            f"- Calibrated 90 % intervals or sets are the posterior's own at {100 * level:.3g} %; they hold between "
            f"{100 * low:.0f} and {100 * high:.0f} % of new targets, with 90 % probability."
        )
    return lines


def _limits(posterior: Posterior) -> list[str]:
    unseen = "p-values (`ood`) tell such rows" if posterior.calibration is not None else "nothing here tells such rows"
    lines = [
        f"- It knows rows like those above. For others predictions are extrapolation: {unseen}.",
        "- It predicts; what would happen if a column were changed on purpose is another question.",
        "- New rows must have the same columns in the same units; categories it has not seen count as rare ones.",
    ]
    if posterior.method.card.is_point:
        lines.append("- It is one set of weights: its ignorance is 0, which is not true.")
    return [*lines, *(f"- Of the fit: {note}." for note in posterior.receipt.notes)]


def _some(names: Iterable[str]) -> str:
    shown = [str(name) for name in names]
    return ", ".join(shown[:SHOWN]) + (f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else "")


def _few(items: Iterable[T]) -> list[T]:
    return list(items)[:SHOWN]
