"""Hierarchies: Bayesian hierarchical clustering and Bayesian rose trees."""
