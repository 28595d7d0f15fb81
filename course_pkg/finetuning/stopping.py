"""Early stopping: when evaluations no longer improve. Smaller values are better.

Both functions look at all evaluations so far, so a resumed run needs no other state.

Chapter: finetuning/sft.
"""

import math
from collections.abc import Sequence

from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.history import Evaluation


def evaluations_without_improvement(
    evaluations: Sequence[Evaluation], min_improvement: float = 0.0
) -> int:
    """How many evaluations came after the last improvement.

    An improvement is a value that is lower by more than min_improvement than the value at the
    improvement before; the first value is one. So slow progress counts as soon as it adds up.
    NaN never is one.
    Source: Prechelt 1998, "Early stopping - but when?"; counted as in PyTorch Lightning.

    >>> values = [2.0, 1.5, 1.48, 1.46, 1.6]
    >>> made = [Evaluation(step, value) for step, value in enumerate(values, start=1)]
    >>> [evaluations_without_improvement(made, least) for least in (0.0, 0.03, 0.1)]
    [1, 1, 3]
    """
    reference, waited = math.inf, 0
    for evaluation in evaluations:
        if evaluation.value < reference - min_improvement:
            reference, waited = evaluation.value, 0
        else:
            waited += 1
    return waited


def out_of_patience(evaluations: Sequence[Evaluation], config: TrainConfig) -> bool:
    """Whether the run stops: as many evaluations without improvement as the config allows.

    >>> made = [Evaluation(10, 2.0), Evaluation(20, 2.1), Evaluation(30, 2.2)]
    >>> settings = {"steps": 90, "evaluate_every": 10}
    >>> [out_of_patience(made, TrainConfig(patience=p, **settings)) for p in (0, 1, 2, 3)]
    [False, True, True, False]
    """
    waited = evaluations_without_improvement(evaluations, config.min_improvement)
    return 0 < config.patience <= waited
