"""How many rounds there will be if a residual goes on falling by the same factor."""

from __future__ import annotations

import math


def expected_rounds(
    n_done: int, residual: float, goal: float, earlier: float, n_since: int, most: int
) -> int | None:
    """Return about how many rounds there will be in all, or None if nobody can say.

    Parameters
    ----------
    n_done, residual
        Rounds so far, and the residual after them.
    goal
        Where it is to get.
    earlier, n_since
        The residual at an earlier time, and rounds since then.
    most
        Rounds that are allowed.
    """
    if residual <= goal or n_done >= most:
        return n_done
    if not (0.0 < goal < residual < earlier < math.inf and n_since > 0):
        return None
    fall = math.log(earlier / residual) / n_since
    left = math.log(residual / goal) / fall
    return n_done + math.ceil(min(left, most - n_done))
