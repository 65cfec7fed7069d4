"""Posterity: any network, a prior and a likelihood, turned into a posterior over the weights."""

from posterity.devices import use_all_cores

use_all_cores()  # before anything can start the backend

from posterity.inference import MAP, MLE, DeepEnsemble, MCDropout, fit
from posterity.model import Model
from posterity.posterior import prior_predictive
from posterity.types import Network
