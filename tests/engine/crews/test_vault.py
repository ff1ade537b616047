"""Where checkpoints lie: begun, taken up, begun anew, and who is shut out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from distclust.engine import Vault
from distclust.errors import ConflictError, InputError


@dataclass(frozen=True)
class Place:
    x: npt.NDArray[np.float64]


STATE = Place(np.arange(3.0))


def steps(vault: Vault, part: str = "plan") -> list[int]:
    return [saved.step for saved in vault.checkpoints(part).newest_first([])]


def test_at__counts_how_often_a_run_was_begun(tmp_path: Path) -> None:
    assert [Vault.at(tmp_path, "a", "f").incarnation for _ in range(4)] == [1, 2, 3, 4]
    assert Vault.at(tmp_path, "b", "f").incarnation == 1
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) <= 4  # old ones go


def test_at__finds_what_was_saved(tmp_path: Path) -> None:
    first = Vault.at(str(tmp_path), "a", "f")
    first.save("plan", 7, first.incarnation, STATE)
    (saved,) = Vault.at(tmp_path, "a", "f").checkpoints("plan").newest_first([])
    np.testing.assert_array_equal(first.restore(Place, saved).x, STATE.x)
    assert steps(Vault.at(tmp_path, "b", "f")) == []


def test_at__others_are_refused_by_fingerprint_and_both_are_named(tmp_path: Path) -> None:
    first = Vault.at(tmp_path, "a", "rows 17")
    first.save("plan", 7, first.incarnation, STATE)
    other = Vault.at(tmp_path, "a", "rows 18")
    (saved,) = other.checkpoints("plan").newest_first([])
    with pytest.raises(InputError, match=r"rows 18.*rows 17"):
        other.restore(Place, saved)


def test_at__one_that_lives_on_from_before_is_shut_out(tmp_path: Path) -> None:
    first = Vault.at(tmp_path, "a", "f")
    second = Vault.at(tmp_path, "a", "f")
    second.save("plan", 1, second.incarnation, STATE)
    with pytest.raises(ConflictError):
        first.save("plan", 9, first.incarnation, STATE)
    assert steps(second) == [1]


def test_fresh__begins_anew_and_goes_on_counting(tmp_path: Path) -> None:
    first = Vault.at(tmp_path, "a", "f")
    other = Vault.at(tmp_path, "ab", "f")
    for vault in (first, other):
        vault.save("plan", 7, vault.incarnation, STATE)
        vault.save("member-000000", 7, vault.incarnation, STATE)
    second = Vault.at(tmp_path, "a", "g", fresh=True)
    assert second.incarnation == 2
    assert steps(second) == steps(second, "member-000000") == []
    assert steps(other) == steps(other, "member-000000") == [7]


def test_clear__keeps_the_count(tmp_path: Path) -> None:
    first = Vault.at(tmp_path, "a", "f")
    first.save("plan", 7, first.incarnation, STATE)
    first.clear()
    assert steps(first) == []
    assert Vault.at(tmp_path, "a", "f").incarnation == 2


@pytest.mark.parametrize("run", ["", "../up", "a b"])
def test_at__a_name_that_leads_elsewhere_is_refused(run: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected"):
        Vault.at(tmp_path, run, "f")
    assert list(tmp_path.iterdir()) == []
