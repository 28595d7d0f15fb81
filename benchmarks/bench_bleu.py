"""BLEU of 16 systems on one test set: ours and sacrebleu's, with and without its cache."""

import random
from collections.abc import Iterator

import sacrebleu
from sacrebleu.metrics.bleu import BLEU

from benchmarks.compare import Comparison, compare_times
from course_pkg.metrics.bleu import PreparedReferences

LIMIT_CALLS, LIMIT_CACHED = 1 / 4, 1 / 2
SYSTEMS, SENTENCES, WORDS = 16, 3000, 5000


def measure(seconds: float = 120.0) -> Iterator[Comparison]:
    """CPU time for the scores of all systems, including tokenizing and counting references."""
    systems, references = _corpus()
    groups = [[text] for text in references]

    def ours() -> list[float]:
        prepared = PreparedReferences(groups)
        return [100 * prepared.score(system).score for system in systems]

    def calls() -> list[float]:
        return [sacrebleu.corpus_bleu(system, [references]).score for system in systems]

    def cached() -> list[float]:
        metric = BLEU(references=[references])
        return [metric.corpus_score(system, None).score for system in systems]

    _require_equal(ours(), calls(), cached())
    what = f"BLEU, {SYSTEMS} systems × {SENTENCES} sentences, cpu"
    # The calls above were the warm-up.
    yield compare_times(
        f"{what}: against sacrebleu.corpus_bleu, called {SYSTEMS} times",
        *(ours, calls),
        seconds=seconds / 2,
        limit=LIMIT_CALLS,
        warmup=0,
    )
    yield compare_times(
        f"{what}: against sacrebleu's BLEU(references=…)",
        *(ours, cached),
        seconds=seconds / 2,
        limit=LIMIT_CACHED,
        warmup=0,
    )


def _corpus() -> tuple[list[list[str]], list[str]]:
    """Sentences of 8 to 40 words with Zipf's frequencies; systems that replace 10% to 55%."""
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(WORDS)]
    weights = [1 / rank for rank in range(1, WORDS + 1)]
    sentences = [rng.choices(words, weights, k=rng.randint(8, 40)) for _ in range(SENTENCES)]
    for sentence in sentences[::2]:
        sentence[len(sentence) // 2] += ","

    def corrupted(probability: float) -> list[str]:
        return [
            " ".join(w if rng.random() > probability else rng.choice(words) for w in sentence) + "."
            for sentence in sentences
        ]

    systems = [corrupted(0.1 + 0.03 * number) for number in range(SYSTEMS)]
    return systems, [" ".join(sentence) + "." for sentence in sentences]


def _require_equal(ours: list[float], *others: list[float]) -> None:
    for theirs in others:
        worst = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
        if worst > 1e-7:
            raise RuntimeError(f"the scores differ by {worst}, so comparing times makes no sense")
