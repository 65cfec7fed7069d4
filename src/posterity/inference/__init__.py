"""Inference: `fit`, and one file for each method."""

from posterity.inference.engine.driver import fit
from posterity.inference.engine.resume import load, resume
from posterity.inference.engine.run import NonFiniteError
from posterity.inference.methods import METHODS
from posterity.inference.methods.bayes_by_backprop import BayesByBackprop
from posterity.inference.methods.exact import Exact
from posterity.inference.methods.hmc import HMC
from posterity.inference.methods.laplace import Laplace
from posterity.inference.methods.mc_dropout import MCDropout, dropout_relation
from posterity.inference.methods.method import Method
from posterity.inference.methods.mile import MILE
from posterity.inference.methods.nuts import NUTS
from posterity.inference.methods.point import MAP, MLE, DeepEnsemble
from posterity.inference.methods.sgmcmc import SGHMC, SGLD, Cyclical
from posterity.inference.methods.swag import SWAG

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
