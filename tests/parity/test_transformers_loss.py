"""Our perplexity compared with the loss that transformers computes."""

import pytest
import torch

from course_pkg.lm.load import load
from course_pkg.metrics.perplexity import perplexity
from course_pkg.pages.datasets import load_texts
from tests.parity.small_models import EQUAL


def loss(model, ids, first=1):
    """The loss of transformers: a mean over the labels that are not -100, in nats per token."""
    labels = torch.tensor([ids])
    labels[:, :first] = -100
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), labels=labels, use_cache=False).loss.item()


@pytest.mark.parametrize("seed", range(2))
def test_one_text_on_random_models(seed):
    model, tokenizer = load("tiny", seed=seed)
    for text in load_texts("passages")[::8]:
        ids = tokenizer(text).input_ids
        found = perplexity(model, tokenizer, text)
        assert found.nll_per_token == pytest.approx(loss(model, ids), rel=4 * EQUAL)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", pytest.param("right", marks=pytest.mark.exhaustive)])
def test_batches_on_smollm2_are_within_5e_5_nats_per_token_of_single_texts(smollm2, side):
    model, tokenizer = smollm2
    texts = load_texts("passages")[::5]
    found = perplexity(model, tokenizer, texts, padding_side=side, bos=True)
    for text, part in zip(texts, found.per_text, strict=True):
        ids = [tokenizer.bos_token_id, *tokenizer(text).input_ids]
        assert part.nll_per_token == pytest.approx(loss(model, ids), abs=5e-5)


@pytest.mark.parametrize("stride", [7, 24])
def test_windows_with_a_stride_equal_those_of_the_transformers_guide(stride):
    """Its guide "Perplexity of fixed-length models", with a corrected number of scored tokens."""
    model, tokenizer = load("tiny")
    text = " ".join(load_texts("passages")[:8])
    ids = tokenizer(text).input_ids
    total = count = before = 0
    for begin in range(0, len(ids), stride):
        end = min(begin + 32, len(ids))
        first = max(1, before - begin)
        if end - begin > first:
            total += loss(model, ids[begin:end], first) * (end - begin - first)
            count += end - begin - first
        before = end
        if end == len(ids):
            break
    found = perplexity(model, tokenizer, text, stride=stride, max_length=32)
    assert found.tokens == count == len(ids) - 1
    assert found.nll / count == pytest.approx(total / count, rel=4 * EQUAL)
