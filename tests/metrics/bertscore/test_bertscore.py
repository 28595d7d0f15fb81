import random

import pytest
import torch

from course_pkg.lm.encoder import Encoder, load_encoder
from course_pkg.metrics.bertscore import bert_score, estimate_baseline
from course_pkg.metrics.bertscore import bertscore as module
from course_pkg.metrics.bertscore.bertscore import idf_weights, pair_scores, token_matches
from tests.refusals import require_refusals

HYPOTHESES = ["the cat sat", "It rained all day.", "a", "nobody likes internationalization"]
REFERENCES = ["a cat was sitting", "It was a wet day.", "the", "good films are rare"]


@pytest.fixture(scope="module")
def encoder():
    return load_encoder()


def values(scores):
    return torch.stack([scores.precision, scores.recall, scores.f1])


def test_the_definition_by_hand_where_a_pad_never_wins_over_a_negative_cosine():
    # Two tokens against three, with vectors in the plane and without [CLS] and [SEP]. Cosines:
    #              (1, 0)  (0, 1)  (-1, 0)
    # (1, 0)          1       0      -1        best 1
    # (0.6, 0.8)     0.6     0.8     -0.6      best 0.8
    # best            1      0.8     -0.6
    x_hat = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    [[p, r, f]] = pair_scores([(x_hat, torch.tensor([0.5, 0.5]), x, torch.full((3,), 1 / 3))])
    assert p.item() == pytest.approx((1 + 0.8) / 2)
    assert r.item() == pytest.approx((1 + 0.8 - 0.6) / 3)
    assert f.item() == pytest.approx(2 * 0.9 * 0.4 / 1.3)
    one = torch.ones(1)
    opposite = (torch.tensor([[1.0, 0.0]]), one, torch.tensor([[-1.0, 0.0]]), one)
    longer = (torch.eye(2), torch.full((2,), 0.5), torch.eye(2), torch.full((2,), 0.5))
    alone = pair_scores([opposite])
    assert alone.tolist() == [[-1, -1, 0]]
    assert torch.equal(pair_scores([opposite, longer])[:1], alone)


def test_the_score_follows_from_the_cosine_matrix(encoder):
    for hypothesis, reference in zip(HYPOTHESES, REFERENCES, strict=True):
        matches = token_matches(hypothesis, reference, encoder, layer=4)
        p = matches.similarity.amax(1)[1:-1].mean()  # without [CLS] and [SEP]
        r = matches.similarity.amax(0)[1:-1].mean()
        score = bert_score([hypothesis], [reference], encoder, layer=4)
        torch.testing.assert_close(score.precision[0], p, atol=1e-5, rtol=0)
        torch.testing.assert_close(score.recall[0], r, atol=1e-5, rtol=0)
        torch.testing.assert_close(score.f1[0], 2 * p * r / (p + r), atol=1e-5, rtol=0)
        assert (matches.hypothesis[0], matches.reference[-1]) == ("[CLS]", "[SEP]")


def test_with_several_references_the_one_with_the_best_f_is_used(encoder):
    groups = [["the cat sat down", "rain", "a cat sat"], ["It rained.", "It was wet all day long."]]
    hypotheses = ["the cat", "It rained all day."]
    result = bert_score(hypotheses, groups, encoder)
    for row, (hypothesis, group) in enumerate(zip(hypotheses, groups, strict=True)):
        single = values(bert_score([hypothesis] * len(group), group, encoder))
        best = single[2].argmax()
        torch.testing.assert_close(values(result)[:, row], single[:, best], atol=1e-5, rtol=0)


def test_idf_depends_on_the_references_only_and_if_it_is_0_weights_are_equal(encoder):
    references = ["a cat", "a dog", "a cat and a cow"]
    result = bert_score(["a dog", "a horse", "the cat"], references, encoder, idf=True)
    others = bert_score(["a dog", "rain", "it rained"], references, encoder, idf=True)
    torch.testing.assert_close(values(result)[:, 0], values(others)[:, 0], atol=1e-6, rtol=0)
    assert result.idf
    pair = (["dog a"], ["a dog"])  # one reference: the idf of its words is 0
    assert torch.equal(
        values(bert_score(*pair, encoder, idf=True)), values(bert_score(*pair, encoder))
    )


def test_the_baseline_is_the_mean_of_random_pairs_and_repeatable(encoder):
    texts = HYPOTHESES + REFERENCES
    base = estimate_baseline(texts, encoder, layer=2, pairs=40, seed=3)
    assert base == estimate_baseline([*texts, texts[0]], encoder, layer=2, pairs=40, seed=3)
    generator = random.Random(3)
    drawn = [generator.sample(texts, 2) for _ in range(40)]
    scores = [bert_score([h], [r], encoder, layer=2).f1.item() for h, r in drawn]
    assert base.f1 == pytest.approx(sum(scores) / 40, abs=1e-5)
    with pytest.raises(ValueError, match="different sentences"):
        estimate_baseline(["a", "a"], encoder)


def test_empty_texts_score_0_and_long_ones_are_truncated_with_a_warning(encoder):
    result = bert_score(["", "cat", "", " "], ["cat", "", "", "cat"], encoder)
    assert values(result).abs().max() == 0
    mixed = bert_score(["", "a cat"], ["a cat", "a cat"], encoder)
    assert mixed.f1.tolist() == pytest.approx([0, 1], abs=1e-5)
    nothing = bert_score([], [], encoder)
    assert nothing.f1.shape == (0,)
    with pytest.warns(UserWarning, match="1 of 2 pairs are longer"):
        result = bert_score(["cat", "cat " * 2_000], ["cat", "cat"], encoder, layer=1)
    assert result.truncated == (1,)


def test_invalid_texts_raise_an_error_that_names_them(encoder):
    require_refusals(
        ("cat", ["cat"], "hypotheses must be a list"),
        (["cat"], ["cat", "dog"], "1 hypotheses and 2 references"),
        ([None], ["cat"], "hypothesis 0 must be a string"),
        (["cat"], [["cat", 3]], "reference 0 must be"),
        (["cat"], [[]], "hypothesis 0 has no reference"),
        of=lambda hypotheses, references: bert_score(hypotheses, references, encoder),
        errors=(TypeError, ValueError),
    )


def test_invalid_options_raise_an_error_that_names_them(encoder):
    def score(**options):
        return bert_score(["cat"], ["cat"], **{"encoder": encoder} | options)

    require_refusals(
        (lambda: score(layer=9), "ValueError: layer must"),
        (lambda: score(batch_size=0), "ValueError: batch_size must"),
        (lambda: score(rescale=(1.0, 0.5, 0.5)), "ValueError: rescale must"),
        (lambda: score(rescale=(0.1,)), "TypeError: rescale must"),
        (lambda: score(idf="yes"), "TypeError: idf must"),
        (lambda: score(encoder="minilm-l6"), "TypeError: encoder must"),
        (lambda: estimate_baseline("a cat sat", encoder), "TypeError.*sentences? .*must be"),
        (lambda: estimate_baseline([1, 2], encoder), "TypeError.*sentences? .*must be"),
        (lambda: estimate_baseline(["a", "b"], encoder, pairs=1.5), "pairs must be an integer"),
        (lambda: idf_weights([], encoder), "at least one reference"),
        errors=(TypeError, ValueError),
    )


def test_half_precision_is_close_and_the_default_is_minilm(encoder, monkeypatch):
    half = load_encoder(dtype=torch.bfloat16)
    exact = values(bert_score(HYPOTHESES, REFERENCES, encoder))
    torch.testing.assert_close(
        values(bert_score(HYPOTHESES, REFERENCES, half)), exact, atol=0.02, rtol=0
    )
    loaded: list[Encoder] = []
    monkeypatch.setattr(module, "load_encoder", lambda: loaded.append(encoder) or encoder)
    assert torch.equal(values(bert_score(HYPOTHESES, REFERENCES)), exact)
    assert len(loaded) == 1
