"""How far apart rounding takes two computations of the same numbers."""

import math

import torch


def rounding(terms: int, dtype: torch.dtype = torch.float32, steps: int = 1) -> float:
    """The relative error ‖a − b‖ / ‖b‖ between two orders of the same sums: eps √(terms · steps).

    terms: numbers in the longest sum. steps: how many such sums follow each other, as the matrices
    of a model do.

    An operation rounds by at most u = eps/2 of its result. CPUs differ in how many partial sums
    they keep and whether a product is rounded before it is added, so any order is right. Rounding
    goes up as often as down: n roundings add up like a random walk, to u √n (Higham 2002, section
    2.8), and so do those of successive steps. Two computations differ by at most the sum of their
    errors, 2 u √n = eps √n. The worst case is eps · n, which sums of random numbers don't reach.

    >>> rounding(16) == 4 * 2**-23
    True
    """
    return torch.finfo(dtype).eps * math.sqrt(terms * steps)
