"""What is refused before anything runs, and rows, settings and starts at the edge of what is taken."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
from scipy.sparse import csr_array

from posterity import (
    HMC,
    MAP,
    MILE,
    SGLD,
    SWAG,
    BayesianRegressor,
    DeepEnsemble,
    Exact,
    Flat,
    Laplace,
    Model,
    Normal,
    audit,
    fit,
    from_nnx,
    load,
    plots,
    prior,
    prior_predictive,
    resume,
)
from posterity.core import records
from posterity.data.arrays import calibration_inputs, check_inputs, dataset
from posterity.inference.engine import program, run
from posterity.inference.engine.start import check_arguments
from posterity.metrics import quantile_calibration
from posterity.metrics.numbers import LEVELS
from posterity.models.counts import Poisson
from posterity.models.likelihoods import Bernoulli, Categorical, Gaussian, GaussianLearnedNoise
from posterity.models.units import Rescaled
from posterity.networks import linear, mlp
from posterity.posterior.diagnose import _kept_trace
from posterity.tables.defaults import table_method, table_prior


@pytest.fixture
def never_runs(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("the first stage was trained")

    monkeypatch.setattr("posterity.inference.engine.driver.run_phase", refuse)


@pytest.mark.parametrize(
    ("method", "likelihood", "believed"),
    [
        (HMC(start=MAP()), Gaussian(0.3), Flat()),
        (SWAG(num_steps=1), Gaussian(0.3), Normal(0.0, 1.0)),
        (Laplace(tune="noise"), Categorical(2), Normal(0.0, 1.0)),
        (Laplace(batch_size=1000), Gaussian(0.3), Normal(0.0, 1.0)),
    ],
)
def test_what_a_later_stage_cannot_do_is_refused_before_the_first_is_trained(
    line, never_runs, method, likelihood, believed
):
    x, y = line
    targets = (y > 0).astype(int) if isinstance(likelihood, Categorical) else y
    with pytest.raises(ValueError, match=r"HMC|SWAG|tune='noise'|batch_size"):
        fit(Model(linear(), likelihood, believed), method, (x, targets))


@pytest.mark.parametrize("bad", [0, 2.5])
def test_an_ensemble_has_a_whole_number_of_members(bad):
    with pytest.raises(ValueError, match="num_members"):
        DeepEnsemble(bad)


def test_members_and_chains_agree_at_every_stage(line):
    assert MILE(start=DeepEnsemble(2)).num_chains == HMC(start=DeepEnsemble(2)).num_chains == 2
    assert HMC(start=MAP()).num_chains == HMC().num_chains == 4
    with pytest.raises(ValueError, match="chains=3 of an ensemble of num_members=8"):
        fit(Model(linear(), Gaussian(0.3)), MILE(start=DeepEnsemble(8)), line, chains=3)


def test_an_anchored_ensemble_needs_a_prior_with_a_mean(line):
    with pytest.raises(ValueError, match="a prior that has a mean"):
        fit(Model(linear(), Gaussian(0.3), dist.Cauchy(0.0, 1.0)), DeepEnsemble(2, anchored=True), line)


def test_a_row_of_weight_zero_is_no_row(line):
    """Not even where its target would overflow."""
    x, y = line
    model, weight = Model(linear(), Gaussian(0.3), Normal(0.0, 0.5)), np.ones(len(y))
    weight[:3] = 0.0
    filled = np.where(weight > 0, y, 1e20)
    with_fill = fit(model, MAP(num_steps=50), (x, filled, weight), progress=False)
    without = fit(model, MAP(num_steps=50), (x[3:], y[3:]), progress=False)
    assert with_fill.receipt.num_data == len(y) - 3
    np.testing.assert_array_equal(with_fill.predict(x).mean, without.predict(x).mean)


def test_a_count_too_large_to_hold_is_named(line):
    x, y = line
    with pytest.raises(ValueError, match=r"the count 3e\+09"):
        fit(Model(linear(), Poisson()), MAP(), (x, np.full(len(y), 3e9)))


def test_a_noise_for_each_target_is_refused_in_words():
    with pytest.raises(ValueError, match=r"Gaussian\(scale=\.\.\.\) is an array of shape \(2,\)"):
        Gaussian(np.array([0.1, 0.2]), 2)


def test_a_temperature_is_finite():
    with pytest.raises(ValueError, match="temperature=inf"):
        Model(linear(), Gaussian(0.3), temperature=float("inf"))


def test_a_pattern_about_layers_leaves_the_noise_its_own_prior():
    table = {"*scale": Normal(1.0, 0.01), "*": Normal(0.0, 1.0)}
    model = Model(linear(), GaussianLearnedNoise(0.5), prior(table))
    own = model.likelihood.priors()["log_scale"]
    assert model.full_prior.find("likelihood/log_scale").scale == own.scale != table["*scale"].scale
    assert model.full_prior.find("network/norm/scale") is table["*scale"]


@pytest.mark.long
def test_optimizers_with_a_line_search(line):
    """To the ridge solution, which L-BFGS reaches in a few steps."""
    x, y = line
    model = Model(linear(), Gaussian(0.3), Normal(0.0, 0.5))
    posterior = fit(model, MAP(optimizer=optax.lbfgs, learning_rate=1.0, num_steps=20), line, progress=False)
    design = np.column_stack([x, np.ones(len(y))])
    exact = np.linalg.solve(design.T @ design / 0.3**2 + np.eye(3) / 0.5**2, design.T @ y / 0.3**2)
    np.testing.assert_allclose(posterior.predict(x).mean, design @ exact, atol=1e-4)


@pytest.mark.long
def test_burn_in_and_draws_are_one_program_where_draws_take_little_room(line, monkeypatch):
    """A second program would take seconds to compile; the draws are the same either way, and none of burn-in's kept."""
    traced, fetched, buffers, gather = [], [], program._buffers, run._gather
    monkeypatch.setattr(program, "_buffers", lambda *arguments: (traced.append(1), buffers(*arguments))[1])
    monkeypatch.setattr(run, "_gather", lambda *a: (fetched.append(a[0] is not None), gather(*a))[1])
    model = Model(linear(bias=False), Gaussian(0.3), Normal(0.0, 1.0))
    method = SGLD(7, num_burn_in=9, learning_rate=1e-3)
    together = fit(model, method, line, chains=3, progress=False)  # as many as in no other of these tests
    assert len(traced) == 1
    assert not any(fetched[: fetched.index(True)])
    assert fetched.index(True) > 0
    monkeypatch.setattr(program, "SEGMENT_BYTES", 3 * 2 * 4 * 100)  # room for a hundred records of three chains
    apart = fit(model, method, line, chains=3, progress=False)
    assert len(traced) == 3
    np.testing.assert_array_equal(together.predict(line[0]).outputs, apart.predict(line[0]).outputs)


@pytest.mark.long
def test_the_thinning_of_draws_is_not_that_of_tuning(line):
    """MILE's second and third phases keep every second step, its draws each step."""
    method = MILE(8, adjusted=True, num_burn_in=10_000, start=DeepEnsemble(2, num_steps=50))
    assert [phase.thin for phase in method.plan(40)] == [1, 2, 2, 1, 1]
    posterior = fit(Model(linear(), Gaussian(0.3)), method, line, progress=False)
    trace, thin = _kept_trace(posterior.trace, 8)
    assert thin == 1
    assert trace["log_joint"].shape == (2, 8)


@pytest.mark.long
def test_a_large_shift_of_the_target_costs_the_diagnosis_no_digits(line):
    x, y = line
    method = HMC(10, num_burn_in=0, step_size=0.02, trajectory_length=0.2)
    small = fit(Model(linear(), Rescaled(Gaussian(0.3), 0.0, 2.0)), method, (x, 2 * y), progress=False)
    shifted = records.replace(small.model, likelihood=Rescaled(Gaussian(0.3), 2.0**30, 2.0))
    large = dataclasses.replace(small, model=shifted)
    expected, found = (one.diagnose(x).draws["mean"] for one in (small, large))
    np.testing.assert_allclose(found - 2.0**30, expected, atol=1e-6)


def test_one_row_knows_no_error_of_its_calibration():
    estimate = quantile_calibration(LEVELS[None], np.zeros(1))
    assert np.isfinite(estimate.value)
    assert np.isnan(estimate.standard_error)


# ------------------------------------------------------------------------------------------------ natural first calls


def test_one_width_is_one_hidden_layer():
    assert mlp(50) == mlp((50,))
    with pytest.raises(TypeError, match="hidden='50' is text"):
        mlp("50")


def test_the_flax_idiom_is_answered_with_ours():
    nnx = pytest.importorskip("flax.nnx")
    with pytest.raises(TypeError, match=r"from_nnx\(lambda key: Net\(nnx\.Rngs\(key\)\)\)"):
        from_nnx(lambda rngs: nnx.Linear(2, 1, rngs=rngs))


def test_a_network_for_other_rows_says_so(line):
    nnx = pytest.importorskip("flax.nnx")
    network = from_nnx(lambda key: nnx.Linear(7, 1, rngs=nnx.Rngs(key)))
    with pytest.raises(ValueError, match=r"cannot be applied to rows such as these two, of shape \(2, 2\)"):
        fit(Model(network, Gaussian(0.3)), MAP(), line)


def test_settings_of_another_kind_are_named(line):
    model = Model(linear(), Gaussian(0.3))
    with pytest.raises(ValueError, match="learning_rate='1e-3'"):
        MAP(learning_rate="1e-3")
    with pytest.raises(ValueError, match="budget='1m' must be a number of seconds"):
        fit(model, MAP(), line, budget="1m")
    with pytest.raises(ValueError, match="budget='1m' must be a number of seconds"):
        resume("nowhere", budget="1m")
    with pytest.raises(ValueError, match=r"memory='1 GB'\) must be a number of bytes, 0 or more"):
        load("nowhere", memory="1 GB")
    with pytest.raises(TypeError, match=r"method is 'tuple'; .* fit\(model, method, \(x, y\)\)"):
        fit(model, line, MAP())


def test_targets_that_do_not_fit_are_named_with_a_remedy(line):
    x, y = line
    with pytest.raises(ValueError, match="such as -1"):
        fit(Model(linear(), Bernoulli()), MAP(), (x, np.where(np.arange(len(y)) % 2, 1, -1)))
    with pytest.raises(ValueError, match="num_outputs=2"):
        fit(Model(linear(), Gaussian(0.3)), MAP(), (x, np.stack([y, y], 1)))
    with pytest.raises(ValueError, match=r"y\.argmax\(-1\)"):
        fit(Model(linear(), Categorical(2)), MAP(), (x, np.eye(2, dtype=int)[(y > 0).astype(int)]))
    with pytest.raises(ValueError, match="use BayesianClassifier"):
        BayesianRegressor().fit(x, np.where(y > 0, "high", "low"))


def test_a_prediction_prints_what_it_can_be_asked_and_refuses_the_rest(line):
    x, y = line
    posterior = fit(Model(linear(), Gaussian(0.3)), MAP(num_steps=5), (x, y), holdout=0.5, progress=False)
    shown = repr(posterior.predict(x))
    assert "40 rows by 1 draws" in shown
    assert "epistemic, ood" in shown
    for setting in ({"num_draws": 2.5}, {"num_draws": 0}, {"memory": "1GB"}, {"memory": -5}):
        (name,) = setting
        with pytest.raises(ValueError, match=f"{name}=.* must be a (whole )?number"):
            posterior.predict(x, **setting)


def test_whole_numbers_that_the_device_has_no_room_for_become_floats():
    large = 3_000_000_000 + np.arange(3)
    for whole in (large, -large, large.astype(np.uint64), np.array([2**40, 0])):
        np.testing.assert_allclose(jnp.asarray(check_inputs(whole)), whole.astype(float), rtol=1e-6)
    assert check_inputs(np.arange(3)).dtype.kind == "i"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (np.ones((4, 2)) * 1j, "complex numbers .* np.abs"),
        (np.ma.masked_less(np.arange(4.0), 2), r"2 masked value\(s\).*filled"),
        (csr_array(np.eye(4)), r"csr_array.*x\.toarray\(\)"),
        (pd.DataFrame({"a": [1.0], "b": pd.array([None], "Float64")}), r"x\.to_numpy\(float"),
        (np.array(["red", "blue"]), "get_dummies"),
        (np.array([1.0, 1e308]), r"1e\+308 at index \(1,\).*rescale"),
    ],
    ids=["complex", "masked", "sparse", "nullable", "text", "huge"],
)
def test_arrays_that_would_lose_something_are_refused_in_words(rows, told):
    for part in (rows, {"part": rows}):
        with pytest.raises((ValueError, TypeError), match=told):
            check_inputs(part)


def test_settings_may_be_numbers_of_numpy(line):
    model = Model(linear(), Gaussian(np.float32(0.3)), temperature=np.float32(0.5))
    check_arguments(model, MAP(), np.int64(0), np.int64(2), np.float32(5))
    assert len(calibration_inputs(dataset(line), np.float32(0.2), 0)[1]) == 8
    assert table_prior("regression", np.int64(2)).distributions[0].scale == 2.0


LINEAR = Model(linear(), Gaussian(0.3))


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (lambda: check_arguments(LINEAR, MAP(), 0, True, None), "chains=True must be a whole number"),
        (lambda: check_arguments(LINEAR, MAP(), True, None, None), "seed=True must be a whole number"),
        (lambda: Model(linear(), Gaussian(0.3), temperature="cold"), "temperature='cold' must be a number above 0"),
        (lambda: Gaussian("0.1"), r"Gaussian\(scale='0.1'\) must be a number above 0"),
        (lambda: calibration_inputs(dataset(([1.0], [1.0])), True, 0), "holdout=True must lie strictly between"),
        (lambda: table_prior("regression", 0), "prior=0 must be above 0"),
        (lambda: table_method(MAP, 100), r"method is MAP; .* or a method object, MAP\(\)"),
        (lambda: prior_predictive(Model(linear(3), Gaussian(0.3)), np.zeros((2, 1))), "takes 1 outputs"),
        (lambda: prior_predictive(LINEAR, np.zeros((2, 1)), num_draws=0), "num_draws=0.* at least 1"),
    ],
)
def test_settings_of_no_use_are_told_what_was_expected(refused, told):
    with pytest.raises((ValueError, TypeError), match=told):
        refused()


def test_plots_say_what_they_take(line):
    with pytest.raises(TypeError, match=r"band\(posterior\.predict\(x\), x\)"):
        plots.band(line[0], line[1])
    with pytest.raises(TypeError, match="expected what fit returns"):
        plots.trace({})


@pytest.mark.long
def test_an_audit_of_two_models_says_what_differs(line):
    x, y = line
    narrow, wide = (Model(linear(), Gaussian(0.3), Normal(0.0, scale)) for scale in (0.5, 3.0))
    reference = fit(narrow, Exact(), line, progress=False)
    assert audit(fit(narrow, Laplace(), line, progress=False), reference, x).differences == ()
    told = audit(fit(wide, Laplace(), (x[5:], y[5:]), progress=False), reference, x)
    assert [sentence.split(",")[0] for sentence in told.differences] == [
        "The two have different numbers of rows",
        "The two have different priors",
    ]
    assert told.differences[0] in str(told)
