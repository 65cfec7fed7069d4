"""Distributions over weights, in memory or on disk: each gives network outputs for draws."""
