"""Several heads: their sum against each by itself, outputs and targets by name, predictions and stores by head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity import (
    HMC,
    MAP,
    Categorical,
    Censored,
    DeepEnsemble,
    Gaussian,
    GaussianLearnedNoise,
    Heads,
    HeteroscedasticGaussian,
    Laplace,
    Model,
    Poisson,
    Rescaled,
    evaluate,
    fit,
    from_function,
    load,
    mlp,
)

pytestmark = pytest.mark.filterwarnings("ignore:.* has not converged")  # runs are short

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
KIND = np.argmax(X + 0.3 * RNG.normal(size=(40, 3)), 1)
SIZE = X[:, 0] - X[:, 1] + 0.1 * RNG.normal(size=40)
Y = {"size": SIZE, "kind": KIND}
HEADS = Heads(kind=Categorical(3), size=HeteroscedasticGaussian())
SHORT = MAP(num_steps=30, batch_size="full")


def two_heads():
    def init(key, x):
        keys = jax.random.split(key, 2)
        return {"kind": jax.random.normal(keys[0], (3, 3)), "size": jax.random.normal(keys[1], (3, 2)) / 2}

    return from_function(init, lambda params, x: {"size": x @ params["size"], "kind": x @ params["kind"]})


def test_the_sum_of_its_heads():
    heads = Heads(a=Categorical(3), b=GaussianLearnedNoise(0.5), c=Poisson(), d=Gaussian(0.2, num_outputs=2))
    outputs = jnp.asarray(RNG.normal(size=(2, 5, 8)), jnp.float32)  # [S, N, 3 + 1 + 1 + 2 and the noise of b]
    y = {"a": np.arange(5) % 3, "b": RNG.normal(size=5), "c": np.arange(5), "d": RNG.normal(size=(5, 2))}
    packed = jnp.asarray(np.column_stack(list(y.values())), jnp.float32)
    each = (
        Categorical(3)(outputs[..., :3]).log_prob(y["a"])
        + GaussianLearnedNoise(0.5)(outputs[..., np.array([3, 7])]).log_prob(y["b"])
        + Poisson()(outputs[..., 4:5]).log_prob(y["c"])
        + Gaussian(0.2, num_outputs=2)(outputs[..., 5:7]).log_prob(y["d"])
    )
    np.testing.assert_allclose(heads(outputs).log_prob(packed), each, rtol=1e-5)
    assert heads.num_outputs == 7
    drawn = heads(outputs).sample(jax.random.key(0), (3,))
    assert drawn.shape == (3, 2, 5, 5)
    fisher = heads.fisher(outputs)
    np.testing.assert_allclose(fisher[..., :3, :3], Categorical(3).fisher(outputs[..., :3]), rtol=1e-6)
    at = np.array([3, 7])
    np.testing.assert_allclose(
        fisher[..., at[:, None], at], GaussianLearnedNoise(0.5).fisher(outputs[..., at]), rtol=1e-6
    )
    assert (np.asarray(fisher[..., :3, 3:]) == 0).all()


def test_one_fit_of_two_heads_is_two_fits():
    """Weights of a linear network by head: the joint posterior is the product of the two."""
    both = fit(Model(two_heads(), HEADS), SHORT, (X, Y)).predict(X)
    assert both.heads == ("kind", "size")

    def of_one(name, width):
        network = from_function(lambda key, x: two_heads().init(key, x)[name], lambda params, x: x @ params)
        return fit(Model(network, dict(HEADS.items())[name]), SHORT, (X, Y[name])).predict(X)

    kind, size = of_one("kind", 3), of_one("size", 2)
    np.testing.assert_allclose(both["kind"].probs, kind.probs, rtol=1e-4)
    np.testing.assert_allclose(both["size"].mean, size.mean, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(both["size"].std, size.std, rtol=1e-4)
    np.testing.assert_allclose(both.log_prob(Y), kind.log_prob(KIND) + size.log_prob(SIZE), rtol=1e-4, atol=1e-5)


def test_uncertainty_scores_receipt_and_store_by_head(tmp_path):
    model = Model(mlp((8,)), HEADS)  # one array, split by columns
    posterior = fit(model, DeepEnsemble(2, num_steps=30), (X, Y), holdout=0.2)
    prediction = posterior.predict(X)
    assert prediction.outputs.shape == (2, 40, 5)
    kind, size = prediction["kind"], prediction["size"]
    assert kind.probs.shape == (40, 3)
    assert size.interval(0.9)[0].shape == (40,)
    for part in (kind, size):
        np.testing.assert_allclose(part.total, part.aleatoric + part.epistemic, rtol=1e-5)
        assert (part.epistemic > 0).any()
    assert prediction.ood.shape == (40,)
    np.testing.assert_array_equal(size.ood, prediction.ood)
    drawn = prediction.sample(2000)
    assert drawn["kind"].shape == drawn["size"].shape == (2000, 40)
    assert set(np.unique(drawn["kind"])) <= {0, 1, 2}
    np.testing.assert_allclose(drawn["size"].mean(0), size.mean, atol=5 * size.std.max() / np.sqrt(2000))
    np.testing.assert_allclose((drawn["kind"] == 1).mean(0), kind.probs[:, 1], atol=0.06)
    scores = evaluate(prediction, Y)
    assert {"nll", "kind/accuracy", "size/rmse"} <= set(scores)
    assert scores["kind/nll"].value == pytest.approx(evaluate(kind, KIND)["nll"].value)
    assert posterior.receipt.likelihood == "Heads(kind=Categorical(num_classes=3), size=HeteroscedasticGaussian())"
    assert posterior.diagnose(X).verdict == "independent"
    posterior.save(tmp_path / "store")
    again = load(tmp_path / "store")
    assert again.model.likelihood == HEADS
    np.testing.assert_array_equal(again.predict(X)["kind"].probs, kind.probs)


def test_heads_with_parameters_of_their_own_and_with_units():
    heads = Heads(noisy=GaussianLearnedNoise(0.3), large=Rescaled(Gaussian(0.1), 1e6, 1e3))
    posterior = fit(Model(mlp((8,)), heads), Laplace(start=SHORT), (X, {"noisy": SIZE, "large": 1e6 + 1e3 * SIZE}))
    assert set(posterior.weights(1)["likelihood"]) == {"noisy"}
    prediction = posterior.predict(X)
    assert abs(prediction["large"].mean.mean() - 1e6) < 5e3
    # The closed form of one head is the limit of many draws.
    closed = posterior.head("large").predict(X)
    drawn = posterior.predict(X, num_draws=2000)["large"]
    assert closed.mean.dtype == float
    np.testing.assert_allclose(closed.std, drawn.std, rtol=0.15)


@pytest.mark.long
def test_samplers_and_audits_by_head():
    model = Model(mlp((4,)), Heads(kind=Categorical(3), size=Gaussian(0.3)))
    long = fit(model, HMC(num_draws=40, num_burn_in=40, max_leapfrog=16), (X, Y), chains=2)
    found = long.diagnose(X)
    assert found.draws["probability or mean"].shape[-1] == 4
    from posterity import audit

    short = fit(model, Laplace(start=SHORT), (X, Y))
    assert np.isfinite(audit(short.head("size"), long.head("size"), X).distance).all()
    with pytest.raises(ValueError, match=r"posterior\.head"):
        audit(short, long, X)


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: Heads(), ValueError, "has no head"),
        (lambda: Heads(kind=3), TypeError, "expected a likelihood"),
        (lambda: fit(Model(mlp((4,)), HEADS), SHORT, (X, SIZE)), TypeError, "targets of each head, {'kind'"),
        (lambda: fit(Model(mlp((4,)), HEADS), SHORT, (X, {"kind": KIND})), TypeError, "a dict of kind; expected"),
        (lambda: fit(Model(mlp((4,)), Gaussian()), SHORT, (X, Y)), TypeError, "expected one array, or Heads"),
        (lambda: fit(Model(two_heads(), Gaussian()), SHORT, (X, SIZE)), ValueError, "a dictionary with .*Heads"),
        (
            lambda: fit(Model(two_heads(), Heads(kind=Categorical(4), size=Gaussian())), SHORT, (X, Y)),
            ValueError,
            "K of 4 for kind, 1 for size",
        ),
        (
            lambda: fit(Model(two_heads(), Heads(sort=Categorical(3), size=Gaussian())), SHORT, (X, Y)),
            TypeError,
            "a dict of size, kind; expected",
        ),
        (
            lambda: fit(
                Model(two_heads(), Heads(sort=Categorical(3), size=Gaussian())),
                SHORT,
                (X, {"sort": KIND, "size": SIZE}),
            ),
            ValueError,
            "outputs named size, kind; the heads are sort, size",
        ),
        (lambda: Rescaled(Censored(Gaussian())), ValueError, r"Censored\(Rescaled"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_remedy(build, error, words):
    with pytest.raises(error, match=words):
        build()


def test_samples_of_heads_are_drawn_together_with_noise_of_their_own():
    heads = Heads(a=Gaussian(1.0), b=Gaussian(1.0))
    prediction = fit(Model(mlp((4,)), heads), MAP(num_steps=1), (X, {"a": SIZE, "b": SIZE})).predict(X[:5])
    drawn = prediction.sample(4000)
    noise = [drawn[name] - prediction[name].mean for name in "ab"]
    assert np.abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 5 / np.sqrt(20_000)


def test_a_whole_prediction_points_to_its_heads():
    prediction = fit(Model(mlp((4,)), HEADS), SHORT, (X, Y)).predict(X)
    for ask in ("mean", "probs", "epistemic", "std"):
        with pytest.raises(ValueError, match=r"ask one of them, prediction\['kind'\]"):
            getattr(prediction, ask)
    with pytest.raises(KeyError, match="heads are kind, size"):
        prediction["sort"]
    with pytest.raises(TypeError, match="is of one target"):
        prediction["kind"]["kind"]
