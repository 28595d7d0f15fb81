"""ROUGE-L and ROUGE-Lsum of texts of 1,000 tokens: ours and Google's rouge-score."""

import random
from collections.abc import Iterator

from rouge_score.rouge_scorer import RougeScorer

from benchmarks.compare import Comparison, compare_times
from course_pkg.metrics.rouge import rouge_l, rouge_lsum, rouge_n

LIMITS = {"L": 1 / 10, "Lsum": 1 / 20, "2": 1 / 4}  # at most this share of rouge-score's time
TOKENS, LINES, WORDS = 1000, 40, 5000


def measure(seconds: float = 60.0) -> Iterator[Comparison]:
    """CPU time of one score of the same two texts, including tokenizing."""
    reference, hypothesis = _texts()
    kinds = {
        "ROUGE-L": ("rougeL", rouge_l, LIMITS["L"]),
        f"ROUGE-Lsum, {LINES} sentences": ("rougeLsum", rouge_lsum, LIMITS["Lsum"]),
        "ROUGE-2": ("rouge2", lambda *texts: rouge_n(*texts, n=2), LIMITS["2"]),
    }
    for what, (kind, score, limit) in kinds.items():
        scorer = RougeScorer([kind])
        ours, theirs = score(hypothesis, reference), scorer.score(reference, hypothesis)[kind]
        if (ours.precision, ours.recall, ours.fmeasure) != tuple(theirs):
            raise AssertionError(f"{what}: ours is {ours}, rouge-score's is {theirs}")
        yield compare_times(
            f"{what}, {TOKENS} tokens each, cpu: against rouge-score",
            lambda score=score: score(hypothesis, reference),
            lambda scorer=scorer: scorer.score(reference, hypothesis),
            seconds=seconds / len(kinds),
            limit=limit,
        )


def _texts() -> tuple[str, str]:
    """A reference with Zipf-like words, one sentence per line, and a copy with half of them new."""
    rng = random.Random(0)

    def word() -> str:
        return f"word{int(WORDS ** rng.random())}"

    lines = [[word() for _ in range(TOKENS // LINES)] for _ in range(LINES)]
    edited = [[w if rng.random() < 0.5 else word() for w in line] for line in lines]
    return tuple("\n".join(map(" ".join, text)) for text in (lines, edited))
