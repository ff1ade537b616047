"""Lists by Bayesian Sets, beside those of chapter 4 of Heller's thesis where there is one.

Three constants reproduce the published tables of NIPS authors and papers to the last place:
binary by "above twice the mean share of the word", the strength of the prior 0.1 for authors
and 10 for papers (the thesis says that its order of magnitude differs across applications),
and top words by how many of the ten have them. Films were those of a set that is not at hand
any more; MovieLens stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import sets_data
from benchmarks.problem import Results, Size, table
from benchmarks.sets_data import Named
from distclust.retrieval.sets import BayesianSets

DEFAULT_KAPPA = 2.0
AUTHORS_KAPPA = 0.1  # the published lists of authors come out exactly with it
DOCUMENTS_KAPPA = 10.0  # and those of papers with this
TOP = 10


@dataclass(frozen=True)
class Asked:
    """A query by names, and what was published for it.

    Attributes
    ----------
    corpus, query
        Which corpus, and the items.
    kappas
        Strengths of the prior to show side by side.
    source
        Where an answer was published.
    published, published_features
        Its items and features by their names in our data, or nothing.
    """

    corpus: str
    query: tuple[str, ...]
    kappas: tuple[float, ...] = (DEFAULT_KAPPA,)
    source: str = ""
    published: tuple[str, ...] = ()
    published_features: tuple[str, ...] = ()


SUPPORT_VECTORS = Asked(
    corpus="NIPS authors",
    query=("Smola_A", "Scholkopf_B"),
    kappas=(AUTHORS_KAPPA, DEFAULT_KAPPA),
    source="table 4.5",
    published=(
        *("Smola_A", "Scholkopf_B", "Mika_S", "Ratsch_G", "Williamson_R"),
        *("Muller_K", "Weston_J", "Shawe-Taylor_J", "Vapnik_V", "Onoda_T"),
    ),
    published_features=(
        *("vector", "support", "kernel", "pages", "machines"),
        *("quadratic", "solve", "regularization", "minimizing", "min"),
    ),
)
PROBABILISTIC_MODELS = Asked(
    corpus="NIPS authors",
    query=("Saul_L", "Jaakkola_T"),
    kappas=(AUTHORS_KAPPA, DEFAULT_KAPPA),
    source="table 4.6, left",
    published=(
        *("Saul_L", "Jaakkola_T", "Rahim_M", "Jordan_M", "Lawrence_N"),
        *("Jebara_T", "Wiegerinck_W", "Meila_M", "Ikeda_S", "Haussler_D"),
    ),
    published_features=(
        *("log", "likelihood", "models", "mixture", "conditional"),
        *("probabilistic", "expectation", "parameters", "distribution", "estimation"),
    ),
)
DECISIONS = Asked(
    corpus="NIPS authors",
    query=("Ng_A", "Sutton_R"),
    kappas=(AUTHORS_KAPPA, DEFAULT_KAPPA),
    source="table 4.6, right",
    published=(
        *("Sutton_R", "Ng_A", "Mansour_Y", "Ravindran_B", "Koller_D"),
        *("Precup_D", "Watkins_C", "Moll_R", "Perkins_T", "McAllester_D"),
    ),
    published_features=(
        *("decision", "reinforcement", "actions", "rewards", "reward"),
        *("start", "return", "received", "mdp", "selects"),
    ),
)

_KERNEL_PAPER = (
    "Bayesian Model Selection for Support Vector Machines, Gaussian Processes and Other Kernel "
    "Classifiers"
)
_CHOOSING_PAPER = "Predictive Approaches for Choosing Hyperparameters in Gaussian Processes"
_ONLINE_PAPER = "Online Learning from Finite Training Sets: An Analytical Case Study"
_BLOCKING_PAPER = "LEARNING STOCHASTIC PERCEPTRONS UNDER K-BLOCKING DISTRIBUTIONS"

GAUSSIAN_PROCESSES = Asked(
    corpus="NIPS papers",
    query=(_KERNEL_PAPER, _CHOOSING_PAPER),
    kappas=(DOCUMENTS_KAPPA, DEFAULT_KAPPA),
    source="table 4.7",
    published=(
        _KERNEL_PAPER,
        _CHOOSING_PAPER,
        "Gaussian Processes for Regression",
        "Gaussian Processes for Bayesian Classification via Hybrid Monte Carlo",
        "Probabilistic Methods for Support Vector Machines",
        "Efficient Approaches to Gaussian Process Classification",
        "Discovering Hidden Features with Gaussian Processes Regression",
        "Computing with Infinite Networks",
        "General Bounds on Bayes Errors for Regression with Gaussian Processes",
        "Finite-Dimensional Approximation of Gaussian Processes",
    ),
    published_features=(
        *("bayesian", "covariance", "gaussian", "prior", "process"),
        *("processes", "williams", "idea", "posterior", "prediction"),
    ),
)
PERCEPTRONS = Asked(
    corpus="NIPS papers",
    query=(_ONLINE_PAPER, _BLOCKING_PAPER),
    kappas=(DOCUMENTS_KAPPA, DEFAULT_KAPPA),
    source="table 4.8",
    published=(
        _ONLINE_PAPER,
        _BLOCKING_PAPER,
        "On-line Learning from Finite Training Sets in Nonlinear Networks",
        "Strong Unimodality and Exact Learning of Constant Depth g-Perceptron Networks",
        "LEARNING FROM QUERIES FOR MAXIMUM INFORMATION GAIN IN IMPERFECTLY LEARNABLE PROBLEMS",
        "On Learning mu-Perceptron Networks with Binary Weights",
        "The Learning Dynamcis of a Universal Approximator",
        "LEARNING IN LARGE LINEAR PERCEPTRONS AND WHY THE THERMODYNAMIC LIMIT IS RELEVANT TO "
        "THE REAL WORLD",
        "Learning with Ensembles: How Overfitting Can Be Useful",
        "ON-LINE LEARNING OF DICHOTOMIES",
    ),
)
CLASSICS = Asked(
    corpus="films",
    query=("Gone with the Wind (1939)", "Casablanca (1942)"),
    kappas=(AUTHORS_KAPPA, DEFAULT_KAPPA),
    source="table 4.2, on other data",
    published=(
        "Gone with the Wind (1939)",
        "Casablanca (1942)",
        "African Queen, The (1951)",
        "Philadelphia Story, The (1940)",
        "My Fair Lady (1964)",
        "Adventures of Robin Hood, The (1938)",
        "Maltese Falcon, The (1941)",
        "Rebecca (1940)",
        "Singin' in the Rain (1952)",
        "It Happened One Night (1934)",
    ),
)
CHILDREN = Asked(
    corpus="films",
    query=("Mary Poppins (1964)", "Toy Story (1995)"),
    kappas=(AUTHORS_KAPPA, DEFAULT_KAPPA),
    source="table 4.3, on other data",
    published=(
        "Mary Poppins (1964)",
        "Toy Story (1995)",
        "Winnie the Pooh and the Blustery Day (1968)",
        "Cinderella (1950)",
        "Love Bug, The (1969)",
        "Bedknobs and Broomsticks (1971)",
        "Davy Crockett, King of the Wild Frontier (1955)",
        "Parent Trap, The (1961)",
        "Dumbo (1941)",
        "Sound of Music, The (1965)",
    ),
)
LISTS = (
    SUPPORT_VECTORS,
    PROBABILISTIC_MODELS,
    DECISIONS,
    GAUSSIAN_PROCESSES,
    PERCEPTRONS,
    CLASSICS,
    CHILDREN,
    Asked("films", ("Cinderella (1950)", "Dumbo (1941)"), (AUTHORS_KAPPA, DEFAULT_KAPPA)),
    Asked("films", ("Alien (1979)", "Terminator, The (1984)"), (AUTHORS_KAPPA, DEFAULT_KAPPA)),
    Asked("things", ("robin", "sparrow")),
    Asked("things", ("trumpet", "violin")),
    Asked("things", ("hammer", "screwdriver")),
    Asked("things", ("apple", "peach")),
    Asked("animals", ("dolphin", "blue whale")),
    Asked("animals", ("lion", "tiger")),
    Asked("animals", ("cow", "sheep")),
)

_TOY = (
    Asked("toy", ("a0", "a1"), (AUTHORS_KAPPA, DEFAULT_KAPPA), "nowhere", tuple("abcdefghij")),
    Asked("toy", ("b0", "b1")),
)


@dataclass(frozen=True)
class Lists:
    """Queries, and how to read the corpora that they are asked of."""

    asked: tuple[Asked, ...]
    corpora: dict[str, Callable[[], Named]]


def make_lists(size: Size) -> Lists:
    """The queries of the thesis and ours; at toy size an invention."""
    if size == "toy":
        return Lists(_TOY, {"toy": sets_data.toy_named})
    return Lists(
        LISTS,
        {
            "NIPS authors": sets_data.nips_authors,
            "NIPS papers": sets_data.nips_papers,
            "films": sets_data.movies,
            "things": sets_data.things,
            "animals": sets_data.animals,
        },
    )


def run_lists(lists: Lists) -> Results:
    """Ask every query with each of its strengths of the prior."""
    found = []
    for name, read in lists.corpora.items():
        corpus = read()
        for asked in lists.asked:
            if asked.corpus == name:
                described = {
                    "corpus": name,
                    "shape": list(corpus.matrix.shape),
                    "query": list(asked.query),
                    "source": asked.source,
                    "published": list(asked.published),
                    "published_features": list(asked.published_features),
                    "answers": [answer(corpus, asked.query, kappa) for kappa in asked.kappas],
                }
                found.append(described)
    return {"lists": found}


def answer(corpus: Named, query: tuple[str, ...], kappa: float) -> dict[str, Any]:
    """Ten items with scores, the weightiest features of the query, and what most items have."""
    explained = BayesianSets(kappa=kappa).fit(corpus.matrix).explain(list(query), TOP)
    ranking = explained.ranking
    return {
        "kappa": kappa,
        "ids": [str(name) for name in ranking.ids],
        "log_scores": ranking.log_scores.tolist(),
        "telling": [feature.name for feature in explained.features],
        "shared": shared_features(corpus, ranking.rows),
    }


def shared_features(corpus: Named, rows: npt.NDArray[np.int64]) -> list[str]:
    """Features that most of some items have; equal ones in the order of the columns."""
    sums = np.asarray(corpus.matrix.read_all()[rows].sum(axis=0)).ravel().astype(np.int64)
    order = np.argsort(-sums, kind="stable")[:TOP]
    return [corpus.features[j] for j in order.tolist()]


# ---- tables --------------------------------------------------------------------------------------


def summarise_lists(results: Results) -> str:
    """A table a query."""
    return "\n\n".join(_one_list(entry) for entry in results["lists"])


def _one_list(entry: dict[str, Any]) -> str:
    answers, published = entry["answers"], entry["published"]
    header, columns = [""], [[str(i + 1) for i in range(TOP)]]
    if published:
        header.append(entry["source"])
        columns.append(published)
    for given in answers:
        scores = [f"{score:.1f}" for score in given["log_scores"]]
        if given["ids"] == published:
            header.append(f"κ = {given['kappa']:g}, the same")
            columns.append(scores)
        else:
            header += [f"κ = {given['kappa']:g}", "log score"]
            columns += [given["ids"], scores]
    items, features = entry["shape"]
    title = f"**{'; '.join(entry['query'])}** ({entry['corpus']}: {items:,} x {features:,})"
    parts = [title, table(header, zip(*columns, strict=True))]
    remarks = [text for given in answers if (text := _remark(given, entry))]
    return "\n\n".join([*parts, *remarks])


def _remark(given: dict[str, Any], entry: dict[str, Any]) -> str:
    """How an answer compares with what was published, and what its items have in common."""
    said = []
    if entry["published"]:
        said.append(f"{agreement(given['ids'], entry['published'])} of {entry['source']}")
    if entry["corpus"] != "films":  # whose features are persons without names
        shared = f"most of the ten have *{', '.join(given['shared'])}*"
        if entry["published_features"]:
            shared += f" ({agreement(given['shared'], entry['published_features'])} of the table)"
        said += [shared, f"the weightiest of the query are *{', '.join(given['telling'])}*"]
    return f"κ = {given['kappa']:g}: {'; '.join(said)}." if said else ""


def agreement(found: list[str], published: list[str]) -> str:
    """Say how many of a published list were found, and whether in its order."""
    n_same = len(set(found) & set(published))
    if n_same < len(published):
        return f"{n_same} of the {len(published)}"
    order = "in order" if found == published else "in another order"
    return f"all {len(published)}, {order},"
