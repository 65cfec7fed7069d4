"""Trees of weights: what is drawn for their shapes."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from posterity.core import pytrees


def test_normals_are_standard_and_no_leaf_repeats_another():
    like = {"a": jnp.zeros((100, 30)), "b": [jnp.zeros(3000), jnp.zeros((), jnp.bfloat16)], "none": None}
    drawn = pytrees.normal_like(jax.random.key(0), like)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), drawn) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), like
    )
    first, second = np.ravel(drawn["a"]), np.asarray(drawn["b"][0])
    for values in (first, second):
        assert stats.kstest(values, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(3000)
    assert len(np.intersect1d(first, second)) < 30  # by chance alone: float32 has 2^23 of them or so
    assert pytrees.normal_like(jax.random.key(0), {}) == {}
