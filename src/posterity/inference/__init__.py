"""Inference: `fit`, and one file for each method."""

from posterity.inference.bayes_by_backprop import BayesByBackprop
from posterity.inference.driver import fit
from posterity.inference.exact import Exact
from posterity.inference.hmc import HMC
from posterity.inference.laplace import Laplace
from posterity.inference.mc_dropout import MCDropout, dropout_relation
from posterity.inference.method import Method
from posterity.inference.mile import MILE
from posterity.inference.nuts import NUTS
from posterity.inference.point import MAP, MLE, DeepEnsemble
from posterity.inference.resume import load, resume
from posterity.inference.run import NonFiniteError
from posterity.inference.sgmcmc import SGHMC, SGLD, Cyclical
from posterity.inference.swag import SWAG

METHODS: dict[str, type[Method]] = {
    "mle": MLE,
    "map": MAP,
    "mc_dropout": MCDropout,
    "bayes_by_backprop": BayesByBackprop,
    "deep_ensemble": DeepEnsemble,
    "laplace": Laplace,
    "swag": SWAG,
    "exact": Exact,
    "hmc": HMC,
    "nuts": NUTS,
    "sgld": SGLD,
    "sghmc": SGHMC,
    "cyclical": Cyclical,
    "mile": MILE,
}

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
    "BayesByBackprop",
    "Cyclical",
    "DeepEnsemble",
    "Exact",
    "Laplace",
    "MCDropout",
    "Method",
    "NonFiniteError",
    "dropout_relation",
    "fit",
    "load",
    "resume",
]
