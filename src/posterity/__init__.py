"""Posterity: any network, a prior and a likelihood, turned into a posterior over the weights.

model = Model(mlp((50, 50)), Gaussian(0.1), Normal(0.0, 1.0))
posterior = fit(model, Laplace(), (x, y), holdout=0.1)
prediction = posterior.predict(x_new)
prediction.mean, prediction.aleatoric, prediction.epistemic, prediction.ood
"""

from typing import TYPE_CHECKING, Any

from numpyro.distributions import Normal

from posterity.devices import use_all_cores

use_all_cores()  # before anything can start the backend

from posterity.audit import Audit, audit
from posterity.diagnosis import Diagnosis
from posterity.encoding import StoreError
from posterity.inference import (
    HMC,
    MAP,
    METHODS,
    MILE,
    MLE,
    NUTS,
    SGHMC,
    SGLD,
    SWAG,
    BayesByBackprop,
    Cyclical,
    DeepEnsemble,
    Exact,
    Laplace,
    MCDropout,
    NonFiniteError,
    dropout_relation,
    fit,
    load,
    resume,
)
from posterity.inference.restarts import StuckError
from posterity.information import cross_entropy, entropy, kl_divergence, self_information
from posterity.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    GaussianLearnedNoise,
    HeteroscedasticGaussian,
    NegativeBinomial,
    NoisyCategorical,
    Poisson,
    StudentT,
    likelihood,
)
from posterity.metrics import evaluate
from posterity.model import Model
from posterity.networks import (
    cnn_lstm,
    from_equinox,
    from_function,
    from_nnx,
    lenet,
    linear,
    mlp,
    resnet20,
    unet,
)
from posterity.posterior import Posterior, prior_predictive
from posterity.prediction import Prediction
from posterity.priors import Fixed, Flat, prior, scale_mixture
from posterity.rescaled import Rescaled
from posterity.types import Network

if TYPE_CHECKING:
    from posterity.estimators import BayesianClassifier, BayesianRegressor

__version__ = "0.1.0"

__all__ = [
    "HMC",
    "MAP",
    "METHODS",
    "MILE",
    "MLE",
    "NUTS",
    "SGHMC",
    "SGLD",
    "SWAG",
    "Audit",
    "BayesByBackprop",
    "BayesianClassifier",
    "BayesianRegressor",
    "Bernoulli",
    "Categorical",
    "Cyclical",
    "DeepEnsemble",
    "Diagnosis",
    "Exact",
    "Fixed",
    "Flat",
    "Gaussian",
    "GaussianLearnedNoise",
    "HeteroscedasticGaussian",
    "Laplace",
    "MCDropout",
    "Model",
    "NegativeBinomial",
    "Network",
    "NoisyCategorical",
    "NonFiniteError",
    "Normal",
    "Poisson",
    "Posterior",
    "Prediction",
    "Rescaled",
    "StoreError",
    "StuckError",
    "StudentT",
    "audit",
    "cnn_lstm",
    "cross_entropy",
    "dropout_relation",
    "entropy",
    "evaluate",
    "fit",
    "from_equinox",
    "from_function",
    "from_nnx",
    "kl_divergence",
    "lenet",
    "likelihood",
    "linear",
    "load",
    "mlp",
    "prior",
    "prior_predictive",
    "resnet20",
    "resume",
    "scale_mixture",
    "self_information",
    "unet",
]


def __getattr__(name: str) -> Any:
    """The estimators are loaded when asked for: scikit-learn and pandas take a second to import."""
    if name not in ("BayesianClassifier", "BayesianRegressor"):
        raise AttributeError(f"module 'posterity' has no attribute {name!r}")
    from posterity import estimators

    return getattr(estimators, name)
