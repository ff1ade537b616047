"""Fitted projections to a file and back: arrays and JSON, no pickle."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import scipy.sparse as sp

from distclust.engine.stored_fits import read_version
from distclust.errors import InputError, ModelFormatError
from distclust.store import Archive, write_archive
from distclust.store.borders import border_facts, restore_border

if TYPE_CHECKING:
    from distclust.projections.kernel_pca import KernelPCA
    from distclust.projections.ppca import PPCA
    from distclust.store.results import ResultsStore

PPCA_KIND = "PPCA"
KERNEL_PCA_KIND = "KernelPCA"

_PPCA_ARRAYS = (
    "components_",
    "explained_variance_",
    "loadings_",
    "mean_",
    "log_likelihood_path_",
)


_KERNEL_PCA_ARRAYS = ("eigenvalues_", "components_", "residuals_", "_row_sums")
_CSR_ARRAYS = ("data", "indices", "indptr")


def save_ppca(model: PPCA, path: str | os.PathLike[str]) -> None:
    """Write a fitted model to one file, complete or not at all."""
    write_archive(path, *ppca_to_archive(model))


def ppca_to_archive(model: PPCA) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return kind, JSON part and arrays of a fitted model."""
    facts = border_facts(model) | {"noise_variance": model.noise_variance_}
    return PPCA_KIND, facts, {name: getattr(model, name) for name in _PPCA_ARRAYS}


def save_kernel_pca(model: KernelPCA, path: str | os.PathLike[str]) -> None:
    """Write a fitted model to one file, complete or not at all."""
    write_archive(path, *kernel_pca_to_archive(model))


def kernel_pca_to_archive(model: KernelPCA) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return kind, JSON part and arrays of a fitted model."""
    facts = border_facts(model)
    if callable(facts["parameters"]["kernel"]):
        facts["parameters"]["kernel"] = model._kernel.name
    facts |= {"kernel": dataclasses.asdict(model._kernel), "n_iter": model.n_iter_}
    facts |= {"seed": model._seed}
    arrays = {name: getattr(model, name) for name in _KERNEL_PCA_ARRAYS}
    # Components that were improved without a product are not those whose product is known.
    known = model._known
    arrays["basis"], arrays["product"] = known.leading(len(model.eigenvalues_))
    arrays["values"] = known.values[: len(model.eigenvalues_)]
    if sp.issparse(model._rows):
        arrays |= {f"rows.{name}": getattr(model._rows, name) for name in _CSR_ARRAYS}
    else:
        arrays["rows"] = model._rows
    for name in ("_middle", "objective_path_"):
        if getattr(model, name, None) is not None:
            arrays[name] = getattr(model, name)
    return KERNEL_PCA_KIND, facts, arrays


def read_model(results: ResultsStore, version_id: str | None = None) -> Any:
    """Read the model of a version, or of the current one."""
    return read_version(results, version_id, from_archive)


def from_archive(archive: Archive, path: str) -> Any:
    """Return the fitted model that an archive holds.

    Raises
    ------
    ModelFormatError
        If the archive does not hold a complete model.
    """
    try:
        rebuild = _rebuild_ppca if archive.kind == PPCA_KIND else _rebuild_kernel_pca
        return rebuild(archive.meta, archive.arrays)
    except (KeyError, TypeError, ValueError, InputError) as error:
        got = f"{type(error).__name__}: {error}"
        raise ModelFormatError(path, "a complete model", got, "Save it again.") from error


def _rebuild_ppca(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> PPCA:
    from distclust.projections.ppca import PPCA

    model = PPCA(**facts["parameters"])
    restore_border(model, facts)
    for name in _PPCA_ARRAYS:
        setattr(model, name, arrays[name])
    model.noise_variance_ = float(facts["noise_variance"])
    path = model.log_likelihood_path_
    model.log_likelihood_, model.n_iter_ = float(path[-1]), len(path) - 1
    n_components = len(model.components_)
    shapes = (model.components_.shape, model.loadings_.shape[::-1], model.mean_.shape)
    n_features = model.n_features_in_
    wanted = ((n_components, n_features), (n_components, n_features), (n_features,))
    if shapes != wanted or model.explained_variance_.shape != (n_components,):
        raise ValueError(f"arrays of shapes {shapes} for {n_features:,} columns")
    return model


def _rebuild_kernel_pca(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> KernelPCA:
    from distclust.projections.growing import Known
    from distclust.projections.kernel_pca import KernelPCA
    from distclust.projections.kernels import NAMED_KERNELS, Kernel, find_function

    parameters = dict(facts["parameters"])
    if parameters["kernel"] not in NAMED_KERNELS:
        parameters["kernel"] = find_function(parameters["kernel"])
    model = KernelPCA(**parameters)
    restore_border(model, facts)
    model._kernel = Kernel(**facts["kernel"])
    model._seed, model.n_iter_ = int(facts["seed"]), int(facts["n_iter"])
    for name in _KERNEL_PCA_ARRAYS:
        setattr(model, name, arrays[name])
    model._middle = arrays.get("_middle")
    if "objective_path_" in arrays:
        model.objective_path_ = arrays["objective_path_"]
    n_rows = len(model._row_sums)
    shape = (n_rows, model.n_features_in_)
    if "rows" in arrays:
        model._rows = arrays["rows"]
    else:
        parts = tuple(arrays[f"rows.{name}"] for name in _CSR_ARRAYS)
        model._rows = sp.csr_array(parts, shape=shape)
        model._rows.check_format(full_check=True)
    n_components = len(model.eigenvalues_)
    basis = arrays.get("basis", model.components_.T)
    values, product = arrays.get("values", model.eigenvalues_), arrays["product"]
    tall = (n_rows, n_components)
    found = (model._rows.shape, model.components_.T.shape, basis.shape, product.shape, values.shape)
    if found != (shape, tall, tall, tall, (n_components,)):
        raise ValueError(f"arrays of shapes {found}")
    model._known = Known.of_vectors(basis, product, values, model._row_sums)
    model._describe()
    return model
