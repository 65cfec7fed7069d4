"""The sections with pictures: each adds to a page what a comparison has to show, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from posterity import plots
from posterity.data.arrays import evenly_spaced
from posterity.plots.palette import name_axes
from posterity.posterior.diagnosis import Diagnosis
from posterity.report.page import Page
from posterity.report.subject import GRID_SIDE, NUM_BINS, Subject
from posterity.tables.comparison import Entry
from posterity.tables.explained import explain
from posterity.tables.pipeline import TableCode

EXPLAINED_ROWS = 10
MAX_MOVED = 200  # rows
MIN_HALVED = 40  # test rows, where half of them must serve to know strange rows by
LEVELS = (0.05, 0.1, 0.2, 0.5)  # of false alarms; few held-out rows cannot tell the smaller ones


def predictions(page: Page, subject: Subject) -> None:
    """Bands for one input, maps of classes for two, and intervals or probabilities for any number."""
    page.section("What they predict")
    if subject.is_regression:
        if subject.num_inputs == 1:
            _bands(page, subject)
        _intervals(page, subject)
    elif subject.num_inputs == 2:
        _maps(page, subject)
    else:
        _probabilities(page, subject)


def _bands(page: Page, subject: Subject) -> None:
    shown, (x, y) = subject.input(0), subject.comparison.train
    rows = evenly_spaced(len(y), 400)
    panels = []
    for entry, prediction in zip(subject.entries, subject.on_grid, strict=True):
        axes = plots.band(prediction, shown.raw(subject.grid), (shown.raw(x[rows, 0]), y[rows]), _panel(entry))
        axes.set_ylim(y.min() - 0.6 * np.ptp(y), y.max() + 0.6 * np.ptp(y))
        name_axes(axes, shown.name, subject.comparison.target)
        panels.append(axes)
    page.figure(
        panels,
        "Prediction along the one input, with two standard deviations of ignorance, and of noise on top of it.",
        look_for="ignorance that widens where there are no points, and nearly all points inside the outer band.",
    )


def _intervals(page: Page, subject: Subject) -> None:
    y = subject.comparison.test[1]
    panels = [plots.predicted_against_observed(entry.prediction, y, _panel(entry)) for entry in subject.entries]
    page.figure(
        panels,
        "Predicted against observed at test rows, with 90 % intervals.",
        look_for="dots along the dotted line, and nine of ten bars crossing it.",
    )
    panels = [plots.sorted_intervals(entry.prediction, y, _panel(entry)) for entry in subject.entries]
    _share_height(panels)
    page.figure(
        panels,
        "The same intervals around the predicted mean, narrowest first.",
        look_for="crosses at the left, where a method was sure and wrong. A band that widens to the right, and dots "
        "that spread with it, know which rows are hard.",
    )


def _maps(page: Page, subject: Subject) -> None:
    inputs, (x, y) = [subject.input(column) for column in (0, 1)], subject.comparison.train
    rows, labels = evenly_spaced(len(y), 250), subject.comparison.labels
    points = np.stack([one.raw(x[rows, column]) for column, one in enumerate(inputs)], 1), y[rows]
    square = subject.grid.reshape(GRID_SIDE, GRID_SIDE, 2)
    sides = inputs[0].raw(square[0, :, 0]), inputs[1].raw(square[:, 0, 1])
    highest = max(float(prediction.epistemic.max()) for prediction in subject.on_grid) or 1.0
    classes, ignorance = [], []
    for entry, prediction in zip(subject.entries, subject.on_grid, strict=True):
        probs = prediction.probs.reshape(GRID_SIDE, GRID_SIDE, -1)
        classes.append(plots.class_mixture(probs, sides, points, _panel(entry), labels))
        values, scale = prediction.epistemic.reshape(GRID_SIDE, GRID_SIDE), {"vmin": 0.0, "vmax": highest}
        ignorance.append(plots.class_map(values, sides, points, _panel(entry), labels, cmap="Oranges", **scale))
        for axes in (classes[-1], ignorance[-1]):
            name_axes(axes, inputs[0].name, inputs[1].name)
    page.figure(
        classes,
        "The predicted class over the two inputs, as colour, with training rows.",
        look_for="mixed tones, which are doubt, between the classes and far from all points.",
    )
    page.figure(
        ignorance,
        "Ignorance (mutual information, nats), on one scale.",
        look_for="little of it among the points, more where there are none. A method that stays pale there does not "
        "know what it has not seen.",
    )


def _probabilities(page: Page, subject: Subject) -> None:
    """Many inputs: what probability the class that was observed had been given."""
    y = subject.comparison.test[1].astype(int)
    axes = plots.new_axes()
    for entry in subject.entries:
        given = np.sort(entry.prediction.probs[np.arange(len(y)), y])
        axes.plot(np.linspace(0, 1, len(given)), given, **_curve(entry))
    name_axes(axes, "share of test rows, worst first", "probability of what was observed")
    page.figure(
        axes,
        "The probability each method had given to the class that was then observed, rows sorted.",
        look_for="a low left end, where a method was sure and wrong.",
    )


def split(page: Page, subject: Subject) -> None:
    """Noise and ignorance along the inputs."""
    page.section(
        "Noise and ignorance",
        "Noise (aleatoric) is in the data and stays; ignorance (epistemic) is the model's own, and more data would "
        "shrink it. Together they are the whole uncertainty.",
    )
    single = subject.num_inputs == 1
    rows, bins = (subject.grid, None) if single else (subject.comparison.test[0], NUM_BINS)
    found = subject.on_grid if single else [entry.prediction for entry in subject.entries]
    first, *_ = columns = subject.telling_inputs
    shown, panels = subject.input(first), []
    for entry, prediction in zip(subject.entries, found, strict=True):
        panels.append(plots.split_along(prediction, shown.raw(rows[:, first]), _panel(entry), bins))
        panels[-1].set_xlabel(shown.name, parse_math=False)
    _share_height(panels)
    averaged = "" if single else ", averaged in bins of test rows"
    page.figure(
        panels,
        f"Noise and ignorance along {shown.name}{averaged}.",
        look_for="ignorance that grows where rows are few, and methods that show none of it.",
    )
    lines = []
    for column in columns:
        shown, axes = subject.input(column), plots.new_axes()
        for entry, prediction in zip(subject.entries, found, strict=True):
            plots.ignorance_along(prediction, shown.raw(rows[:, column]), axes, bins, **_curve(entry))
        axes.set_xlabel(shown.name, parse_math=False)
        lines.append(axes)
    page.figure(
        lines,
        "Ignorance of all methods" + ("." if single else " along the inputs that change it most."),
        look_for="where methods disagree on it."
        if subject.reference is None
        else f"who is as ignorant as {subject.reference.label}, and where.",
    )


def reasons(page: Page, subject: Subject) -> None:
    """What columns the mean, the noise and the ignorance come from, by the method to use."""
    entry = subject.comparison.recommended() or subject.entries[0]
    code, x = TableCode.of(entry.posterior), subject.comparison.test[0]
    if code is None or len(code.inputs.columns) < 2:
        return
    page.section("Why is it unsure?", "What each column adds to a prediction, to its noise and to its ignorance.")
    rows = x[evenly_spaced(len(x), EXPLAINED_ROWS)]
    found = explain(entry.posterior, code.inputs, rows, labels=code.labels)
    page.figure(
        [plots.attributions(found, part) for part in ("mean", "aleatoric", "epistemic")],
        f"Shapley values by {entry.label} at {len(rows)} test rows: the mean size of what a column adds to the mean "
        "(of classes, to the probability of the most probable one), to the noise and to the ignorance.",
        look_for="columns that drive the noise or the ignorance and not the mean.",
    )


def calibration(page: Page, subject: Subject) -> None:
    """Coverage and calibration curves."""
    page.section("Calibration", "When a method says 80 %, is it right 80 % of the time?")
    y = subject.comparison.test[1]
    panels = [
        _together(subject, lambda entry, axes: plots.coverage_curve(entry.prediction, y, axes, **_curve(entry))),
        _together(subject, lambda entry, axes: plots.calibration_curve(entry.prediction, y, axes, **_curve(entry))),
    ]
    if subject.is_regression:
        text = "Test rows inside central intervals of each size, and below each quantile; grey is what chance may do."
        look_for = (
            "the dotted diagonal. Of intervals, below it is too sure, above it too cautious; of quantiles, a curve on "
            "one side of it is a bias."
        )
    else:
        text = (
            "How often the smallest set of classes of a probability holds the right one, which should be at least that "
            "often; and accuracy over confidence. Grey is what chance may do."
        )
        look_for = "curves under the diagonal, which are too sure."
    page.figure(panels, text, look_for=look_for)


def selection(page: Page, subject: Subject) -> None:
    """Risk-coverage curves."""
    page.section("Answering only when sure")
    y = subject.comparison.test[1]
    axes = _together(subject, lambda entry, axes: plots.risk_coverage_curve(entry.prediction, y, axes, **_curve(entry)))
    page.figure(
        axes,
        "The error on the rows a method is most certain of, over the share of rows it answers.",
        look_for="a curve that falls to the left. A flat one cannot tell its good answers from its bad ones.",
    )


def novelty(page: Page, subject: Subject) -> None:
    """Out-of-distribution p-values at test rows and at rows moved away from the data."""
    x = subject.comparison.test[0]
    set_aside = all(entry.posterior.calibration is not None for entry in subject.entries)
    if not set_aside and len(x) < MIN_HALVED:
        return
    page.section("Unfamiliar inputs")
    known, asked = (None, x) if set_aside else (x[::2], x[1::2])
    asked = asked[evenly_spaced(len(asked), MAX_MOVED)]
    familiar, moved = plots.new_axes(), plots.new_axes()
    for entry in subject.entries:
        posterior = entry.posterior if known is None else entry.posterior.calibrate(known)
        assert posterior.calibration is not None
        smallest = 1 / (len(posterior.calibration.scores) + 1)
        level = next((level for level in LEVELS if level >= smallest), LEVELS[-1])
        p_values = plots.moved_p_values(posterior, asked)
        plots.p_value_curve(p_values[0], familiar, **_curve(entry))
        plots.alarm_curve(p_values, axes=moved, level=level, **_curve(entry))
    among = "rows set aside from training" if set_aside else "half of the test rows; the other half is asked about"
    page.figure(
        [familiar, moved],
        f"A p-value says how unusual a row is among {among}. First at real rows, then at the same rows moved away from "
        "the centre of the training data.",
        look_for="first the diagonal; then a start at the dotted line, the false alarms asked for, and a quick rise.",
    )


def samplers(page: Page, subject: Subject) -> None:
    """Traces and R-hat of methods that are Markov chains."""
    chosen, found = [], []
    for entry in subject.entries:
        if entry.card.is_sampler and entry.posterior.trace and entry.diagnosis is not None:
            chosen.append(entry)
            found.append(entry.diagnosis)
    if not chosen:
        return
    page.section("Have the samplers arrived?")
    page.table(
        ("method", "verdict", "chains x draws", "largest R-hat", "fewest effective draws"),
        [(entry.label, *_convergence(one)) for entry, one in zip(chosen, found, strict=True)],
        "Convergence of what is predicted at test rows: good is R-hat under 1.01 everywhere with 100 effective draws "
        "per chain, usable is under 1.1 nearly everywhere.",
    )
    panels = []
    for entry in chosen:
        name = "log_joint" if "log_joint" in entry.posterior.trace else next(iter(entry.posterior.trace))
        panels.append(plots.trace(entry.posterior, _panel(entry), name))
    page.figure(
        panels,
        "The log joint density along each run, burn-in included.",
        look_for="chains that lie over each other and no longer climb.",
    )
    curve = plots.new_axes()
    for entry, one in zip(chosen, found, strict=True):
        plots.r_hat_curve(one, curve, **_curve(entry))
    if curve.get_legend_handles_labels()[1]:
        page.figure(
            curve,
            "R-hat over the test rows.",
            look_for="curves that reach the top at the left; what lies right of 1.1 has not converged.",
        )
    for entry, one in zip(chosen, found, strict=True):
        page.details(f"{entry.label}: the diagnosis in words", str(one), plain=False)


def _convergence(found: Diagnosis) -> tuple[str, ...]:
    r_hat, draws = (values[np.isfinite(values)] for values in (found.r_hat, found.ess_bulk))
    return (
        found.verdict,
        f"{found.num_chains} x {found.num_draws}",
        f"{r_hat.max():.4g}" if r_hat.size else "unknown",
        f"{draws.min():.0f}" if draws.size else "unknown",
    )


def against_reference(page: Page, subject: Subject) -> None:
    """Each method over the reference, row by row."""
    reference = subject.reference
    others = [entry for entry in subject.entries if entry is not reference]
    if reference is None or not others:
        return

    def panels(quantity: str, word: str) -> list[Any]:
        made = []
        for entry in others:
            style = {"color": plots.method_style(entry.name)["color"]}
            pair = entry.prediction, reference.prediction
            made.append(plots.against_reference(*pair, quantity, _panel(entry), **style))
            name_axes(made[-1], f"{word}, {reference.label}", f"{word}, {entry.label}")
        return made

    page.figure(
        panels("mean", "mean" if subject.is_regression else "probability"),
        f"What each method predicts at test rows, over what {reference.label} does.",
        look_for="the dotted diagonal.",
    )
    page.figure(
        panels("epistemic", "ignorance"),
        f"Ignorance ({'standard deviation' if subject.is_regression else 'nats'}) of each method, over that of "
        f"{reference.label}.",
        look_for="points under the diagonal, which are false confidence.",
    )


def _panel(entry: Entry) -> Any:
    axes = plots.new_axes()
    axes.set_title(entry.label, parse_math=False)
    return axes


def _curve(entry: Entry) -> dict[str, Any]:
    return {"label": entry.label, **plots.method_style(entry.name)}


def _together(subject: Subject, draw: Callable[[Entry, Any], Any]) -> Any:
    axes = plots.new_axes()
    for entry in subject.entries:
        draw(entry, axes)
    return axes


def _share_height(panels: list[Any]) -> None:
    """One scale for all panels; a method far beyond the others is cut off instead of flattening them."""
    limits = np.array([axes.get_ylim() for axes in panels])
    low, high = np.median(limits, 0)
    for axes in panels:
        axes.set_ylim(max(limits[:, 0].min(), min(3 * low, 0)), min(limits[:, 1].max(), 3 * high))
