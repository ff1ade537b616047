"""The data of ``distclust demo``: an invented field notebook of animals and their traits.

Nothing is downloaded and nothing here is zoology: eight kinds of animal each have traits
that are usual, possible or odd, and a seeded, forgetful observer ticks them off. The names
are real so that the hierarchy found in the ticks can be judged at a glance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

USUAL, POSSIBLE, ODD = 0.92, 0.45, 0.03  # chance that a trait is ticked


@dataclass(frozen=True)
class Kind:
    """One kind of animal: its members, the last of which is kept for prediction."""

    name: str
    members: str
    usual: str
    possible: str


KINDS = (
    Kind(
        "grazers",
        "horse, zebra, cow, sheep, deer, bison, donkey",
        "backbone, warm blood, fur, milk, four legs, hooves, eats plants, lives in herds, "
        "lives on grassland",
        "horns, stripes or spots, long tail, migrates",
    ),
    Kind(
        "hunters",
        "wolf, fox, lion, tiger, lynx, weasel, cheetah",
        "backbone, warm blood, fur, milk, four legs, claws, fangs, eats meat, long tail",
        "stripes or spots, hunts at night, lives in woods, lives on grassland",
    ),
    Kind(
        "sea mammals",
        "dolphin, orca, seal, walrus, blue whale, beluga, manatee",
        "backbone, warm blood, milk, flippers, swims, lives in the sea, blubber, eats fish",
        "lives in herds, migrates, sings",
    ),
    Kind(
        "songbirds",
        "robin, wren, sparrow, finch, lark, nightingale, blackbird",
        "backbone, warm blood, feathers, wings, flies, beak, lays eggs, builds a nest, sings, "
        "lives in woods",
        "eats insects, eats plants, migrates, stripes or spots",
    ),
    Kind(
        "birds of prey",
        "eagle, hawk, falcon, owl, kestrel, osprey, condor",
        "backbone, warm blood, feathers, wings, flies, beak, lays eggs, builds a nest, claws, "
        "eats meat, hunts from the air",
        "hunts at night, lives in woods, eats fish",
    ),
    Kind(
        "fish",
        "salmon, trout, pike, herring, cod, tuna, sardine",
        "backbone, scales, fins, gills, swims, lays eggs, lives in shoals",
        "lives in the sea, lives in rivers, eats fish, migrates, stripes or spots",
    ),
    Kind(
        "reptiles",
        "lizard, gecko, viper, cobra, iguana, chameleon, rattlesnake",
        "backbone, scales, lays eggs, sheds its skin, basks in the sun, long tail",
        "fangs, venom, four legs, eats insects, eats meat, hibernates",
    ),
    Kind(
        "insects",
        "ant, bee, wasp, beetle, moth, dragonfly, butterfly",
        "six legs, antennae, lays eggs, wings, lives in swarms",
        "flies, venom, eats plants, pollinates, sheds its skin, stripes or spots, sings",
    ),
)
# Animals that fit no kind well, to see unsure answers.
ODD_ONES = {
    "penguin": "backbone, warm blood, feathers, beak, lays eggs, swims, wings, "
    "lives in the sea, eats fish, builds a nest",
    "bat": "backbone, warm blood, fur, milk, wings, flies, eats insects, hunts at night, "
    "lives in woods",
    "platypus": "backbone, warm blood, fur, beak, lays eggs, swims, venom, lives in rivers",
}


@dataclass(frozen=True)
class Notebook:
    """Ticks for the animals to cluster and for those to place afterwards."""

    seen: pd.DataFrame  # (n_rows, n_traits) of bool, indexed by animal
    unseen: pd.DataFrame  # the same columns
    kinds: np.ndarray  # (n_rows,) name of the kind each seen row was made from


def field_notebook(seed: int = 0) -> Notebook:
    """Make the notebook; the same seed makes the same one."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    traits = _all_traits()
    seen, unseen, kinds = {}, {}, []
    for kind in KINDS:
        chance = _chances(kind, traits)
        *members, last = _split(kind.members)
        for animal in members:
            seen[animal] = rng.random(len(traits)) < chance
            kinds.append(kind.name)
        unseen[last] = rng.random(len(traits)) < chance
    for animal, listed in ODD_ONES.items():
        unseen[animal] = np.isin(traits, _split(listed))
    return Notebook(
        seen=pd.DataFrame(seen, index=traits).T.rename_axis("animal"),
        unseen=pd.DataFrame(unseen, index=traits).T.rename_axis("animal"),
        kinds=np.array(kinds),
    )


def _all_traits() -> list[str]:
    listed = [trait for kind in KINDS for trait in _split(f"{kind.usual}, {kind.possible}")]
    return list(dict.fromkeys(listed))


def _chances(kind: Kind, traits: list[str]) -> np.ndarray:
    chance = np.full(len(traits), ODD)
    chance[np.isin(traits, _split(kind.possible))] = POSSIBLE
    chance[np.isin(traits, _split(kind.usual))] = USUAL
    return chance


def _split(names: str) -> list[str]:
    return names.split(", ")
