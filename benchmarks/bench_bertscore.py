"""BERTScore: our implementation and bert-score on the same pairs, with the same encoder and layer.

Both have the encoder loaded already, and both read each text once. The difference is in the
batches: ours group texts of similar length by tokens, theirs by words, 64 texts at a time.
"""

import random
from collections.abc import Iterator

import torch
from bert_score import BERTScorer

from benchmarks.compare import Comparison, compare_times
from course_pkg.lm.encoder import encoder_folder, load_encoder
from course_pkg.metrics.bertscore import bert_score

LIMIT = 1.0
WORDS = (
    "the of and a in to it is was that he on with as at by for from people water house year old "
    "new long good bad quickly unbelievable international understanding misunderstood rain , ."
)
PAIRS = 96


def measure(seconds: float = 40.0) -> Iterator[Comparison]:
    """Time for short and for longer pairs, without and with idf."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder = load_encoder(device=device)
    folder, layer = str(encoder_folder()), encoder.layers
    for low, high, idf in ((3, 12, False), (3, 60, False), (3, 60, True)):
        texts = _texts(2 * PAIRS, low, high)
        hypotheses, references = texts[:PAIRS], texts[PAIRS:]
        # This computes their idf weights, which therefore don't count in their time.
        theirs = BERTScorer(
            model_type=folder, num_layers=layer, device=device, idf=idf, idf_sents=references
        )
        ours = _call(bert_score, hypotheses, references, encoder, layer=layer, idf=idf)
        weighted = ", idf" if idf else ""
        yield compare_times(
            f"BERTScore, {PAIRS} pairs of {low}–{high} words{weighted}, {device}",
            ours,
            _call(theirs.score, hypotheses, references),
            seconds=seconds / 3,
            limit=LIMIT,
        )


def _texts(count: int, low: int, high: int) -> list[str]:
    rng, words = random.Random(0), WORDS.split()
    return [" ".join(rng.choices(words, k=rng.randint(low, high))) for _ in range(count)]


def _call(function, *args, **options):
    return lambda: function(*args, **options)
