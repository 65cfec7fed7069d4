"""Fits that come to their end and are wrong: each is warned of, with the remedy, and kept in the receipt."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning

from posterity import (
    HMC,
    MAP,
    BayesianRegressor,
    ConvergenceWarning,
    DeepEnsemble,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    Model,
    Rescaled,
    fit,
    linear,
    load,
    mlp,
)
from posterity.inference.engine.concerns import of_loss
from posterity.posterior.trace import Trace

APART = HMC(num_draws=20, num_burn_in=0, step_size=1e-5, trajectory_length=2e-5)  # chains stay near where they begin
MODEL = Model(linear(), Gaussian(0.3))


@pytest.fixture
def strict():
    """Warnings of convergence are errors here, as everywhere else in the tests they are not."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("holdout", [None, 0.25])
def test_chains_that_have_not_converged_are_warned_of(line, holdout, tmp_path):
    with pytest.warns(ConvergenceWarning, match=r"chains have not converged: .* more burn-in and draws"):
        posterior = fit(MODEL, APART, line, chains=3, holdout=holdout, store=tmp_path / "run")
    assert len(posterior.receipt.warnings) == 1
    assert load(tmp_path / "run").receipt.warnings == posterior.receipt.warnings
    assert "have not converged" in str(posterior.receipt)


def test_predictions_at_held_out_rows_judge_chains_whose_log_joint_agrees(line):
    """Strides of two steps say nothing of the log joint at draws: what is predicted must show it."""
    thinned = HMC(num_draws=20, num_burn_in=0, thin=2, step_size=1e-5, trajectory_length=2e-5)
    with pytest.warns(ConvergenceWarning, match=r"R-hat is under 1\.1 at \d+ % of 10 inputs"):
        fit(MODEL, thinned, line, chains=3, holdout=0.25)


def test_chains_that_agree_are_not_warned_of(line, strict):
    posterior = fit(MODEL, HMC(num_draws=200, num_burn_in=50), line, chains=4, holdout=0.25)
    assert posterior.receipt.warnings == ()
    assert fit(MODEL, DeepEnsemble(2, num_steps=20), line).receipt.warnings == ()


def test_estimators_warn_as_those_of_scikit_learn_do(line):
    with pytest.warns(SklearnConvergenceWarning, match="chains have not converged") as caught:
        model = BayesianRegressor(APART, hidden=()).fit(*line)
    assert issubclass(caught[-1].category, ConvergenceWarning)
    assert len(model.posterior_.receipt.warnings) >= 1


@pytest.mark.parametrize("method", [MAP, lambda **given: Laplace(start=MAP(**given))], ids=["alone", "as a start"])
def test_a_loss_that_ends_above_the_first_is_warned_of(line, method):
    with pytest.warns(
        ConvergenceWarning, match=r"MAP has not converged: the loss of chain 0 was .* Lower learning_rate"
    ):
        posterior = fit(Model(mlp((8,)), Gaussian(0.3)), method(num_steps=40, learning_rate=20.0), line)
    assert any("learning_rate" in words for words in posterior.receipt.warnings)


@pytest.mark.parametrize(
    ("loss", "rises"),
    [
        (np.linspace(3, 1, 50), False),
        (np.linspace(1, 1.02, 50), False),  # the noise of batches
        (np.linspace(1, 3, 50), True),
        (np.array([1e3, 1e5, 1e7]), False),  # too few to tell
        (np.linspace(-5, -4, 50), True),
    ],
)
def test_which_losses_rise(loss, rises):
    trace = Trace({"loss": loss[None]}, np.zeros(len(loss), bool), np.ones(len(loss), int))
    assert bool(of_loss("MAP", trace)) == rises


@pytest.mark.parametrize(
    ("model", "inputs", "targets", "message"),
    [
        (MODEL, lambda x: x + 1e12, lambda y: y, r"2 column\(s\) of them, the first column 0: subtract"),
        (MODEL, lambda x: x * [1, 1e-9] + [0, 1], lambda y: y, r"1 column\(s\) of them, the first column 1: subtract"),
        (
            Model(linear(2), HeteroscedasticGaussian()),
            lambda x: x,
            lambda y: y + 1e12,
            "targets vary less than float32",
        ),
        (Model(linear(), Gaussian(0.1)), lambda x: x, lambda y: 1e4 * y, "times the noise that is fixed at 0.1"),
    ],
    ids=["far inputs", "flat input", "far targets", "small noise"],
)
def test_what_float32_or_the_noise_cannot_hold_is_warned_of(line, model, inputs, targets, message):
    x, y = line
    with pytest.warns(UserWarning, match=message):
        posterior = fit(model, MAP(num_steps=3, learning_rate=1e-6), (inputs(x), targets(y)))
    assert any("standardise" in words or "subtract" in words for words in posterior.receipt.warnings)


def test_units_of_their_own_are_no_concern(line, strict):
    x, y = line
    model = Model(linear(), Rescaled(Gaussian(0.3), 1e12, 1e3))
    assert fit(model, MAP(num_steps=20), (x, 1e12 + 1e3 * y)).receipt.warnings == ()
    constant = np.column_stack([x, np.full(len(x), 1e12)])
    assert fit(MODEL, MAP(num_steps=20), (constant[:, :2], y)).receipt.warnings == ()
