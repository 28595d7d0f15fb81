"""A step: what the scheduler decides, and the engine computes in one forward pass.

Chapter: serving/continuous-batching.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from course_pkg.serving.block_manager import Pairs
from course_pkg.serving.sequence import Sequence


class Scheduled(NamedTuple):
    """The tokens start … start + count − 1 of a sequence; samples: the next one is wanted."""

    sequence: Sequence
    start: int
    count: int
    samples: bool


@dataclass
class Step:
    """What the engine does, in this order: swap out, swap in, copy, compute all that is scheduled.

    Each pair is (source, target). The order matters: a block that is swapped out may be the target
    of any other copy in the same step.
    """

    scheduled: list[Scheduled] = field(default_factory=list)
    swap_out: Pairs = field(default_factory=list)  # (block, host block)
    swap_in: Pairs = field(default_factory=list)  # (host block, block)
    copies: Pairs = field(default_factory=list)  # (block, block)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """How many tokens the step computes."""
        return sum(entry.count for entry in self.scheduled)
