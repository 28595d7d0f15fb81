"""The course's own evaluation data as plain records: a dict for each line of a file.

`items` reads such lines into the items of a task and checks them; here nothing is changed.
Chapter: evaluation/likelihood-and-generation.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course_pkg.common.arguments import require_integer

FOLDER = Path(__file__).parents[2] / "data/evaluation"


def read_records(name: str) -> list[dict[str, Any]]:
    """The records of course_pkg/data/evaluation/NAME.jsonl. Raises ValueError for another name.

    >>> read_records("multiple-choice")[0]["options"][3]
    'a whisk'
    """
    path = FOLDER / f"{name}.jsonl"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in FOLDER.glob("*.jsonl")))
        raise ValueError(f"there is no evaluation data {name!r}; there are {known}")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def first_of_groups(records: Sequence[dict[str, Any]], count: int = 2) -> list[dict[str, Any]]:
    """The first `count` records of each group, in their order: fewer related items.

    Raises ValueError for a count below 1.

    >>> first_of_groups([{"group": "a"}, {"group": "b"}, {"group": "a"}], count=1)
    [{'group': 'a'}, {'group': 'b'}]
    """
    require_integer(count, "count")
    seen: Counter[str] = Counter()
    chosen = []
    for record in records:
        seen[record["group"]] += 1
        if seen[record["group"]] <= count:
            chosen.append(record)
    return chosen
