"""What `fit` returns: the posterior, its receipt and diagnosis, its store, and its distance from a reference."""
