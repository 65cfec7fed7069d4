"""What each method is and when to use it; and how names and times on the command line are understood."""

from __future__ import annotations

import re

from posterity.cli.errors import InputError
from posterity.cli.output import print_json, print_table
from posterity.cli.tables import similar_name
from posterity.core.types import TASKS
from posterity.tables.comparison import COMPARED, LABELS

DESCRIPTIONS = {
    "mle": ("The weights that fit the data best.", "A baseline. It overfits, and knows nothing of its ignorance."),
    "map": ("The most probable weights.", "A baseline that is regularised; the start of other methods."),
    "mc_dropout": ("Dropout left on when predicting.", "A network that is trained with dropout anyway."),
    "bayes_by_backprop": (
        "One independent Gaussian for each weight, by the ELBO.",
        "Pruning, or one pass over large data; too sure between data.",
    ),
    "deep_ensemble": ("Several networks from several starts.", "Good predictions with little thought."),
    "laplace": (
        "A Gaussian around the most probable weights.",
        "The first to try: quick, and honest near the data.",
    ),
    "swag": ("A Gaussian of the path of gradient descent.", "A large network that is trained by SGD already."),
    "exact": ("The closed form.", "Networks that are linear in their weights only; not for the tables here."),
    "sgld": ("Langevin dynamics on minibatches.", "Many rows; slower to mix than SGHMC."),
    "sghmc": ("Hamiltonian dynamics on minibatches.", "Many rows, when a sampler is wanted."),
    "cyclical": ("SGHMC whose step size comes and goes.", "Many rows and several modes."),
    "mile": ("A microcanonical sampler from each member of an ensemble.", "Nearly HMC's answer in less time."),
    "nuts": ("HMC that chooses its own trajectory length.", "Few weights; when HMC's defaults do not fit."),
    "hmc": ("Hamiltonian Monte Carlo on all rows.", "The referee: the posterior itself, given time."),
}
NOT_FOR_TABLES = ("exact",)
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def run_methods(as_json: bool) -> None:
    rows = [
        {"name": name, "method": LABELS[name], "what it is": what, "when to use it": when}
        for name, (what, when) in DESCRIPTIONS.items()
    ]
    if as_json:
        print_json([{**row, "compared": row["name"] in COMPARED} for row in rows])
    else:
        print_table(rows, left=tuple(rows[0]))


def check_methods(given: str | None) -> list[str]:
    """Names with commas between them; also as people write them, "MC dropout"."""
    if given is None:
        return list(COMPARED)
    names = [check_method(name) for name in given.split(",") if name.strip()]
    if not names:
        raise InputError(f"--methods is empty; name some of {', '.join(DESCRIPTIONS)}.")
    return list(dict.fromkeys(names))


def check_method(given: str) -> str:
    name = re.sub(r"[\s-]+", "_", given.strip().lower())
    if name in NOT_FOR_TABLES:
        raise InputError(f"{name} cannot be used here. {' '.join(DESCRIPTIONS[name])} Others: `posterity methods`.")
    if name in DESCRIPTIONS:
        return name
    guess = similar_name(name, DESCRIPTIONS)
    hint = f" Did you mean {guess}?" if guess else ""
    raise InputError(f"There is no method {given.strip()!r}.{hint} Methods: {', '.join(DESCRIPTIONS)}.")


def check_task(given: str | None) -> str | None:
    if given is None or given in TASKS:
        return given
    guess = similar_name(given, TASKS)
    hint = f" Did you mean {guess}?" if guess else ""
    raise InputError(f"--task {given} is not known.{hint} Tasks: {', '.join(TASKS)}.")


def check_budget(given: str | None) -> float | None:
    """90, 90s, 2m, 1h, 1h30m, in seconds."""
    if given is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(h|min|m|s)?", given.strip().lower())
    written = re.fullmatch(r"(\d+(\.\d+)?\s*(h|min|m|s)?\s*)+", given.strip().lower())
    seconds = sum(float(number) * UNITS[unit or "s"] for number, unit in parts)
    if written is None or seconds <= 0:
        raise InputError(f"--budget {given} is not a time; write for instance 90s, 2m or 1h30m.")
    return seconds


def check_effort(given: float) -> float:
    if not given > 0:
        raise InputError(f"--effort {given} must be above 0: 1 is the usual number of steps, 0.1 a tenth of them.")
    return given
