"""Hierarchies: Bayesian hierarchical clustering and Bayesian rose trees.

``estimators`` is what users touch, ``base`` what they share. ``data`` turns a matrix into leaf
statistics, ``search`` finds trees, ``optimise`` learns their hyperparameters, ``evaluate`` and
``tree`` say what a tree means, ``prediction`` what it says about new rows.

Data of any size: ``large`` is what their estimators share, ``randomised`` and ``em`` are the two
methods, ``fits`` and ``stored_fits`` run, save and resume them. ``growing`` divides rows by
samples (``sampling``, ``splitting``, ``filters``, ``components``, ``routing``, over ``passes``),
``sweeping`` moves them between clusters, ``assembly`` puts the tree together, ``labelling`` labels
other stores and ``levels`` tells the tree level by level.
"""

from distclust.trees.estimators import BHC, EMBHC, BayesianRoseTree, RandomizedBHC
from distclust.trees.persistence import load
from distclust.trees.purity import dendrogram_purity
from distclust.trees.structure import Structure
from distclust.trees.tree import Tree

__all__ = [
    "BHC",
    "EMBHC",
    "BayesianRoseTree",
    "RandomizedBHC",
    "Structure",
    "Tree",
    "dendrogram_purity",
    "load",
]
