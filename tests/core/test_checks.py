"""What a user may set, and how: checks in words, and settings that cannot be mistaken for one another."""

import inspect

import numpy as np
import pytest
from rich.console import Console

from posterity import METHODS, BayesByBackprop, Laplace, MCDropout
from posterity.core.checks import check_positive, check_rate, check_whole
from posterity.inference.engine.progress import ProgressBar

FIRST = {
    "hmc": ["num_draws"],
    "nuts": ["num_draws"],
    "sgld": ["num_draws"],
    "sghmc": ["num_draws"],
    "mile": ["num_draws"],
    "smc": ["num_particles"],
    "deep_ensemble": ["num_members"],
    "cyclical": ["base"],
}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_all_but_one_obvious_setting_is_given_by_name(name):
    parameters = inspect.signature(METHODS[name]).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == FIRST.get(name, [])


@pytest.mark.parametrize("bad", [0, -1, 1.0, "3", True, None, (3, 0)])
def test_whole_numbers(bad):
    with pytest.raises(ValueError, match=r"^Tool\(size=.*\): expected .* at least 1\.$"):
        check_whole("Tool", size=bad)
    check_whole("Tool", size=np.int64(3), widths=(1, 2), other=1)


@pytest.mark.parametrize("bad", [0.0, -1, np.nan, np.inf])
def test_positive_numbers(bad):
    with pytest.raises(ValueError, match=r"^Tool\(size=.*\) must be a number above 0\.$"):
        check_positive("Tool", size=bad)
    check_positive("Tool", size=1e-9)


def test_rates():
    assert check_rate("dropout", 0) == 0.0
    with pytest.raises(ValueError, match="dropout=1 is outside"):
        check_rate("dropout", 1)


@pytest.mark.parametrize(
    "make",
    [lambda: BayesByBackprop(num_samples=0), lambda: MCDropout(num_masks=0), lambda: Laplace(num_rounds=0)],
)
def test_methods_check_their_counts(make):
    with pytest.raises(ValueError, match="at least 1"):
        make()


@pytest.mark.parametrize("jupyter", [False, True])
def test_the_bar_is_shown_in_a_notebook(jupyter, monkeypatch):
    monkeypatch.setattr(Console, "is_terminal", property(lambda console: False))
    monkeypatch.setattr(Console, "is_jupyter", jupyter, raising=False)
    create = Console.__init__

    def init(console, *args, **settings):
        create(console, *args, **settings)
        console.is_jupyter = jupyter

    monkeypatch.setattr(Console, "__init__", init)
    assert ProgressBar("HMC", 3, show=True)._progress.disable is not jupyter
    assert ProgressBar("HMC", 3, show=False)._progress.disable


def test_the_bar_says_that_it_compiles_until_the_first_steps_are_done():
    bar = ProgressBar("HMC", 3, show=False)
    (task,) = bar._progress.tasks
    assert task.fields["shown"] == "compiling"
    bar.update(1, "log_joint", -2.5)
    assert (task.completed, task.fields["shown"]) == (1, "log joint -2.5")
