"""Values of a store: every class under its qualified name, and what is read passes the checks of what is built."""

import json

import pytest

import posterity
from posterity import (
    HMC,
    MAP,
    SWAG,
    Bernoulli,
    Categorical,
    Gaussian,
    Laplace,
    Model,
    NegativeBinomial,
    NoisyCategorical,
    Normal,
    Poisson,
    mlp,
)
from posterity.core import records
from posterity.models.likelihoods import Likelihood
from posterity.storage.codec import StoreError, decode, encode, find_missing


def back(value, name="model", change=lambda text: text):
    """A value written to JSON and read again; `change` edits the JSON between."""
    arrays = {}
    return decode(json.loads(change(json.dumps(encode(value, arrays, name)))), arrays)


def test_a_record_of_the_same_name_does_not_displace_another():
    @records.record
    class Gaussian(Likelihood):
        scale: float = 1.0
        num_outputs: int = 1

    ours = posterity.Gaussian
    assert type(back(ours(0.3))) is ours
    assert back(ours(0.3)) == ours(0.3)
    assert type(back(Gaussian(0.3))) is Gaussian
    assert records.qualified_name(ours) == "posterity.models.likelihoods.Gaussian"


@pytest.mark.parametrize("value", [Bernoulli(), Categorical(5), NoisyCategorical(3), NegativeBinomial(), Poisson()])
def test_likelihoods_with_outputs_of_their_own_survive_the_trip(value):
    assert back(value) == value
    assert back(value).num_outputs == value.num_outputs


def test_a_second_record_of_the_same_qualified_name_is_refused():
    name = {"__module__": Gaussian.__module__, "__qualname__": "Gaussian", "__annotations__": {}}
    with pytest.raises(TypeError, match=r"a record posterity\.models\.likelihoods\.Gaussian already: give the second"):
        records.record(type("Gaussian", (), name))
    assert type(back(Gaussian(0.3))) is Gaussian


def test_a_definition_that_runs_again_replaces_its_own_record():
    def define():
        @records.record
        class Toy:
            size: int = 1

        return Toy

    first, second = define(), define()
    assert type(back(second(3))) is second
    assert find_missing(back(first(3)))  # of the class that was replaced: refused, never read as the new one


EDITS = {
    "scale": (Gaussian(0.25), "0.25", "-0.25", r"Gaussian\(scale=-0.25\) must be a number above 0"),
    "temperature": (Model(mlp((2,)), Gaussian(0.5)), '"temperature": 1.0', '"temperature": 0.0', "temperature=0.0"),
    "draws": (HMC(num_draws=77, step_size=0.1), "77", "-1", "num_draws"),
    "steps": (MAP(num_steps=77), "77", "0", r"MAP\(num_steps=0\)"),
    "matrix": (Laplace(matrix="diagonal"), "diagonal", "diagonall", "matrix='diagonall'"),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_a_constructor_refuses_is_refused_when_it_is_read(name):
    value, old, new, message = EDITS[name]
    with pytest.raises(ValueError, match=message):
        back(value, change=lambda text: text.replace(old, new))


def test_a_record_without_a_field_it_needs_is_refused():
    stored = encode(Model(mlp((2,)), Gaussian(0.5), Normal(0.0, 1.0)), {}, "model")
    del stored["fields"]["network"]
    with pytest.raises(TypeError, match="network"):
        decode(stored, {})


def test_an_unknown_name_is_refused_with_the_remedy():
    with pytest.raises(StoreError, match="does not know: import the module that defines it"):
        back(Gaussian(0.5), change=lambda text: text.replace("likelihoods.Gaussian", "likelihoods.Gauss"))


def test_a_default_that_is_a_function_need_not_be_passed_again():
    """SWAG's optimiser is one of this package's own."""
    assert not find_missing(back(SWAG(), "method"))
    assert back(SWAG(), "method").optimizer is SWAG().optimizer
    assert find_missing(back(SWAG(optimizer=lambda rate: rate), "method"))
