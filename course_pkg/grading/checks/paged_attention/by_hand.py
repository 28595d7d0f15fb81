"""`paged-attention`: the case of the numbers worked by hand, and their right values.

Chapter: exercises.
"""

import math
from random import Random
from typing import Any

Inputs = dict[str, Any]


def by_hand(rng: Random | None) -> Inputs:
    """Two prompts that end within a block; each of them takes two blocks or more as it grows."""
    if rng is None:
        case = {"block_size": 4, "blocks": 14, "a": 10, "b": 7, "new": 7}
        return case | {"position": 9, "c": 21, "common": 7}
    while True:
        size = rng.randint(4, 8)
        case = {"block_size": size, "blocks": rng.randint(18, 24)}
        case |= {"a": rng.randint(size + 2, 4 * size), "b": rng.randint(size, 4 * size)}
        case["new"] = rng.randint(size + 1, 3 * size)
        case["position"] = rng.randrange(size, case["b"] + case["new"])
        case["c"] = case["a"] + rng.randint(20, 60)
        case["common"] = rng.randint(size + 1, case["a"])
        taken = [math.ceil((case[s] + case["new"]) / size) - case[s] // size - 1 for s in "ab"]
        tail = [case[s] % size for s in "ab"]
        empty = _empty(case)
        if min(taken) > 1 and 0 not in tail and case["common"] % size and min(empty) > 0:
            return case


def _final(case: Inputs, name: str) -> int:
    return case[name] + case["new"]


def _empty(case: Inputs) -> list[int]:
    return [-_final(case, name) % case["block_size"] for name in "ab"]


def by_hand_tables_expected(case: Inputs) -> list[list[int]]:
    """A block is taken for the first token that finds no room."""
    size, next_block = case["block_size"], 1
    tables = {"a": [], "b": []}
    arrivals = ["a"] * case["a"] + ["b"] * case["b"] + ["a", "b"] * case["new"]
    tokens = dict.fromkeys("ab", 0)
    for name in arrivals:
        if tokens[name] % size == 0:
            tables[name].append(next_block)
            next_block += 1
        tokens[name] += 1
    return [tables["a"], tables["b"]]


def by_hand_free_expected(case: Inputs) -> list[int]:
    """Free blocks, and slots without a token in the others."""
    used = [math.ceil(_final(case, name) / case["block_size"]) for name in "ab"]
    return [case["blocks"] - sum(used), sum(_empty(case))]


def by_hand_slot_expected(case: Inputs) -> int:
    """The block's number times the block size, plus the offset."""
    index, offset = divmod(case["position"], case["block_size"])
    return by_hand_tables_expected(case)[1][index] * case["block_size"] + offset


def by_hand_computed_expected(case: Inputs) -> int:
    """All tokens of c but those in full blocks that it has in common with a."""
    return case["c"] - case["common"] // case["block_size"] * case["block_size"]
