"""BERTScore compared with bert-score 0.3.13, with the same encoder, on every layer.

There are no empty strings, because bert-score crashes on them under transformers 5. Scores of
single pairs are equal. In a batch, bert-score gives padding a cosine of 0, which exceeds negative
cosines, so a score depends on the other texts of the batch (the page on BERTScore shows it).
So the tests use single pairs, or texts without such tokens. The tolerance is 1e-5, for fp32 sums
in another order.
"""

import random

import pytest
import torch
from bert_score import BERTScorer
from bert_score.utils import get_idf_dict

from course_pkg.lm.encoder import encoder_folder, load_encoder
from course_pkg.metrics.bertscore import Baseline, bert_score, idf_weights

WORDS = (
    "the a cat dog sat on mat runs quickly house tree blue red unbelievable internationalization "
    "rain , . not never good bad movie"
)
HYPOTHESES = [
    "the cat sat on the mat",
    "people like foreign cars",
    "The meeting has been moved to next Tuesday because the manager is ill.",
    "It rained.",
    "She sold the old house for a very good price last year.",
]
REFERENCES = [
    "a cat was sitting on the mat",
    "consumers prefer imported cars",
    "Because the manager is sick, the meeting was moved to Tuesday.",
    "It has rained all day long.",
    "Last year she sold her house, and got a good price for it.",
]


@pytest.fixture(scope="module")
def encoder():
    return load_encoder()


def scorer(layer, **options):
    """bert-score's scorer without its processes for idf: forking with threads may hang."""
    model = {"model_type": str(encoder_folder()), "num_layers": layer, "device": "cpu"}
    return BERTScorer(**model, nthreads=0, **options)


def values(scores):
    return torch.stack([scores.precision, scores.recall, scores.f1])


def close(ours, theirs):
    torch.testing.assert_close(values(ours), torch.stack(theirs), atol=1e-5, rtol=0)


def random_texts(count, seed):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS.split(), k=rng.randint(1, 25))) for _ in range(count)]


@pytest.mark.parametrize("layer", [0, 3, 6])
def test_single_pairs_are_equal_on_every_layer(encoder, layer):
    theirs = scorer(layer)
    hypotheses = random_texts(12, layer)
    references = random_texts(12, layer + 50)
    rows = [torch.cat(theirs.score([h], [r])) for h, r in zip(hypotheses, references, strict=True)]
    close(bert_score(hypotheses, references, encoder, layer=layer), torch.stack(rows, 1).unbind())


@pytest.mark.parametrize(("layer", "batch_size"), [(0, 2), (3, 64), (6, 2)])
def test_batches_of_sentences_are_equal(encoder, layer, batch_size):
    theirs = scorer(layer, batch_size=batch_size)
    ours = bert_score(HYPOTHESES, REFERENCES, encoder, layer=layer, batch_size=batch_size)
    close(ours, theirs.score(HYPOTHESES, REFERENCES))


def test_scores_with_idf_are_equal(encoder):
    theirs = scorer(5, idf=True, idf_sents=REFERENCES)
    close(
        bert_score(HYPOTHESES, REFERENCES, encoder, layer=5, idf=True),
        theirs.score(HYPOTHESES, REFERENCES),
    )
    expected = get_idf_dict(REFERENCES, theirs._tokenizer, nthreads=0)
    assert idf_weights(REFERENCES, encoder).weights == pytest.approx(dict(expected))
    assert idf_weights(REFERENCES, encoder).unseen == pytest.approx(expected["an unseen token"])


def test_scores_with_several_references_are_equal(encoder):
    groups = [REFERENCES[:2], REFERENCES[1:4], REFERENCES[2:3], REFERENCES, REFERENCES[3:]]
    theirs = scorer(6).score(HYPOTHESES, groups)
    close(bert_score(HYPOTHESES, groups, encoder, multi="each"), theirs)
    best = bert_score(HYPOTHESES, groups, encoder)
    torch.testing.assert_close(best.f1, theirs[2], atol=1e-5, rtol=0)  # F is the same either way


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # from bert-score
def test_rescaled_scores_are_equal(encoder, tmp_path):
    base = Baseline(0.31, 0.32, 0.33)
    lines = ["LAYER,P,R,F", *(f"{layer},{base[0]},{base[1]},{base[2]}" for layer in range(7))]
    (tmp_path / "baseline.tsv").write_text("\n".join(lines) + "\n")
    theirs = scorer(
        6, lang="en", rescale_with_baseline=True, baseline_path=str(tmp_path / "baseline.tsv")
    )
    ours = bert_score(HYPOTHESES, REFERENCES, encoder, rescale=base)
    close(ours, theirs.score(HYPOTHESES, REFERENCES))
    assert ours.baseline == base
