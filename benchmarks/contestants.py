"""What runs inside the workers of benchmarks/samplers.py: our samplers, a bare loop of gradients, and the peers'.

Each contestant takes settings and gives a function that runs once and reports. Those that sample a network's posterior
by HMC all have the same target, step size and number of leapfrog steps; peers sample it twice, with our code for the
density and with plain code, so that it is seen what the sampler gains and what the network. This
file is also run in the peers' environment, so posterity is imported where it is needed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
from workers import serve

NOISE = 0.3
Contest = Callable[[], dict[str, Any]]


def regression(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Eight standardised features and a target of about unit variance, noisier where the first feature is large."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 8))
    signal = np.sin(1.5 * x[:, 0] * x[:, 1]) + 0.5 * np.square(x[:, 2]) - 0.5 + 0.4 * x[:, 3]
    noise = NOISE * np.exp(0.5 * np.tanh(x[:, 0])) * rng.normal(size=rows)
    return x.astype(np.float32), ((signal + noise) / 1.1).astype(np.float32)


def hmc_model(settings: dict[str, Any]) -> tuple[Any, Any]:
    from posterity import Gaussian, Model, Normal, mlp

    return Model(mlp(settings["hidden"]), Gaussian(NOISE), Normal(0.0, 1.0)), regression(settings["rows"])


def timed(settings: dict[str, Any], run: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """What a run gives, and its rate. Processor time tells the cost of a gradient on a machine that is not quiet."""
    began, began_processor = time.perf_counter(), time.process_time()
    result = run()
    seconds, processor = time.perf_counter() - began, time.process_time() - began_processor
    gradients = settings["chains"] * settings["draws"] * settings["leapfrog"]
    rates = {"gradients_per_second": gradients / seconds, "processor_us_per_gradient": 1e6 * processor / gradients}
    return result, rates


def posterity_hmc(settings: dict[str, Any]) -> Contest:
    """Through `fit`, all of it: checks, start, segments, trace and draws."""
    from posterity import HMC, fit

    model, data = hmc_model(settings)
    method = HMC(
        num_draws=settings["draws"],
        num_burn_in=0,
        step_size=settings["step_size"],
        trajectory_length=settings["step_size"] * settings["leapfrog"],
        jitter=0.0,
    )

    def contest() -> dict[str, Any]:
        posterior, report = timed(settings, lambda: fit(model, method, data, chains=settings["chains"], progress=False))
        assert posterior.receipt.num_gradients == settings["chains"] * settings["draws"] * settings["leapfrog"]
        return {**report, "acceptance": float(posterior.trace["acceptance"].mean())}

    return contest


def density_and_starts(settings: dict[str, Any]) -> tuple[Any, Any]:
    """The log density as a function of the weights alone, and a start for each chain, [C, ...].

    "ours" is that of our Model; "plain" the same function as a user of a sampling library would write it.
    """
    import jax
    import jax.numpy as jnp

    from posterity.core.types import Batch

    model, (x, y) = hmc_model(settings)
    batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.ones(len(y)))
    starts = jax.vmap(lambda key: model.init(key, batch.x))(jax.random.split(jax.random.key(0), settings["chains"]))
    if settings.get("density", "ours") == "ours":
        return lambda params: model.log_joint(params, batch), starts

    def plain(params: Any) -> Any:
        hidden, (*inner, last) = batch.x, params["network"].values()
        for layer in inner:
            hidden = jax.nn.relu(hidden @ layer["weight"] + layer["bias"])
        mean = (hidden @ last["weight"] + last["bias"])[:, 0]
        prior = sum(jnp.sum(jax.scipy.stats.norm.logpdf(weight)) for weight in jax.tree.leaves(params))
        return jnp.sum(jax.scipy.stats.norm.logpdf(batch.y, mean, NOISE)) + prior

    first = jax.tree.map(lambda leaf: leaf[0], starts)
    assert np.isclose(plain(first), model.log_joint(first, batch), rtol=1e-4)
    return plain, starts


def bare(settings: dict[str, Any]) -> Contest:
    """Nothing but gradients: w <- w + 1e-9 g, as often as HMC asks for one, on the same devices."""
    import jax
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    density, starts = density_and_starts(settings)
    mesh = Mesh(np.asarray(jax.devices()), ("chain",))
    steps = settings["draws"] * settings["leapfrog"]

    def chain(params: Any) -> Any:
        def step(_: Any, params: Any) -> Any:
            return jax.tree.map(lambda w, g: w + 1e-9 * g, params, jax.grad(density)(params))

        return jax.lax.fori_loop(0, steps, step, params)

    run = jax.jit(jax.shard_map(jax.vmap(chain), mesh=mesh, in_specs=P("chain"), out_specs=P("chain"), check_vma=False))

    def contest() -> dict[str, Any]:
        return timed(settings, lambda: jax.block_until_ready(run(starts)))[1]

    return contest


def blackjax_hmc(settings: dict[str, Any]) -> Contest:
    """As its documentation runs several chains: the kernel mapped over chains, in a scan."""
    import blackjax
    import jax
    import jax.numpy as jnp

    density, starts = density_and_starts(settings)
    size = sum(leaf[0].size for leaf in jax.tree.leaves(starts))
    sampler: Any = blackjax.hmc(density, settings["step_size"], jnp.ones(size), settings["leapfrog"])

    @jax.jit
    def run(key: Any, starts: Any) -> Any:
        def step(states: Any, key: Any) -> Any:
            states, info = jax.vmap(sampler.step)(jax.random.split(key, settings["chains"]), states)
            return states, (states.position, info.acceptance_rate)

        return jax.lax.scan(step, jax.vmap(sampler.init)(starts), jax.random.split(key, settings["draws"]))[1]

    def contest() -> dict[str, Any]:
        (_, acceptance), report = timed(settings, lambda: jax.block_until_ready(run(jax.random.key(1), starts)))
        return {**report, "acceptance": float(acceptance.mean())}

    return contest


def numpyro_hmc(settings: dict[str, Any]) -> Contest:
    """Its driver, chains "vectorized" or "parallel".

    It compiles in every run of a bare potential, so the rate is that of the draws a long run has beyond a short one.
    """
    import jax
    from numpyro.infer import HMC, MCMC

    density, starts = density_and_starts(settings)
    common: dict[str, Any] = {"num_chains": settings["chains"], "chain_method": settings["chain_method"]}

    def run(draws: int) -> Any:
        # A kernel remembers the chains it was set up for, and a second run with it fails.
        kernel = HMC(
            potential_fn=lambda params: -density(params),
            step_size=settings["step_size"],
            num_steps=settings["leapfrog"],
            trajectory_length=None,  # type: ignore[arg-type]  # its own documentation says so where num_steps is given
            adapt_step_size=False,
            adapt_mass_matrix=False,
        )
        sampler = MCMC(kernel, num_warmup=0, num_samples=draws, progress_bar=False, **common)
        sampler.run(jax.random.key(1), init_params=starts, extra_fields=("accept_prob",))
        return jax.block_until_ready((sampler.get_samples(), sampler.get_extra_fields()))[1]

    def contest() -> dict[str, Any]:
        short, draws = settings["draws"] // 10, settings["draws"]
        _, brief = timed({**settings, "draws": short}, lambda: run(short))
        fields, report = timed(settings, lambda: run(draws))
        rest = draws - short
        seconds = draws / report["gradients_per_second"] - short / brief["gradients_per_second"]
        cost = draws * report["processor_us_per_gradient"] - short * brief["processor_us_per_gradient"]
        return {
            "gradients_per_second": rest / seconds,
            "processor_us_per_gradient": cost / rest,
            "acceptance": float(fields["accept_prob"].mean()),
        }

    return contest


def split_rows(settings: dict[str, Any]) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    x, y = regression(settings["rows"] + settings["test_rows"])
    return (x[: settings["rows"]], y[: settings["rows"]]), (x[settings["rows"] :], y[settings["rows"] :])


def posterity_mile(settings: dict[str, Any]) -> Contest:
    """bde's own likelihood, N(f_1, (softplus f_2 + 1e-6)^2), and prior, N(0, 1)."""
    import jax
    import numpyro.distributions as dist

    from posterity import MILE, DeepEnsemble, Model, Normal, fit, likelihood, mlp

    gaussian = likelihood(lambda o: dist.Normal(o[..., 0], jax.nn.softplus(o[..., 1]) + 1e-6), num_outputs=2)
    model = Model(mlp(settings["hidden"]), gaussian, Normal(0.0, 1.0))
    ensemble = DeepEnsemble(
        num_members=settings["members"],
        num_steps=settings["epochs"],
        learning_rate=settings["learning_rate"],
        batch_size="full",
    )
    method = MILE(
        num_draws=settings["steps"] // settings["thin"],
        num_burn_in=settings["warmup"],
        thin=settings["thin"],
        start=ensemble,
    )
    train, (x, y) = split_rows(settings)
    seeds = count()  # another one in every turn, the same for both contestants

    def contest() -> dict[str, Any]:
        began = time.perf_counter()
        posterior = fit(model, method, train, seed=next(seeds), progress=False)
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "log_likelihood": float(np.mean(posterior.predict(x).log_prob(y)))}

    return contest


def bde_mile(settings: dict[str, Any]) -> Contest:
    import logging

    from bde import BdeRegressor  # type: ignore[import-not-found]
    from scipy import stats
    from scipy.special import logsumexp

    logging.disable(logging.INFO)
    (x_train, y_train), (x, y) = split_rows(settings)
    seeds = count()

    def contest() -> dict[str, Any]:
        estimator = BdeRegressor(
            n_members=settings["members"],
            hidden_layers=list(settings["hidden"]),
            epochs=settings["epochs"],
            lr=settings["learning_rate"],
            validation_split=None,  # type: ignore[arg-type]  # all rows train, as ours do
            warmup_steps=settings["warmup"],
            n_samples=settings["steps"],
            n_thinning=settings["thin"],
            seed=next(seeds),
        )
        began = time.perf_counter()
        estimator.fit(x_train, y_train)
        seconds = time.perf_counter() - began
        raw = np.asarray(estimator.predict(x, raw=True), float)
        # Of every draw: the mean, and what softplus makes the scale of; its documentation says the scale itself.
        outputs = raw.reshape(-1, len(x), 2)
        densities = stats.norm.logpdf(y, outputs[..., 0], np.logaddexp(0, outputs[..., 1]) + 1e-6)
        mixture = logsumexp(densities, 0) - np.log(len(outputs))
        return {"seconds": seconds, "log_likelihood": float(mixture.mean()), "draws": len(outputs)}

    return contest


CONTESTANTS: dict[str, Callable[[dict[str, Any]], Contest]] = {
    "posterity_hmc": posterity_hmc,
    "bare": bare,
    "blackjax_hmc": blackjax_hmc,
    "numpyro_hmc": numpyro_hmc,
    "posterity_mile": posterity_mile,
    "bde_mile": bde_mile,
}

if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    serve(CONTESTANTS[chosen["contestant"]](chosen))
