import copy
import math

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from course_pkg.lm.load import load
from course_pkg.metrics.perplexity import Likelihood, perplexity, windows
from tests.refusals import require_refusals

TEXTS = ["The kettle is on.", "A", "", "Two geese crossed the road — 两只鹅。", "ab", "ab" * 40]


def nll(model, ids, first=1):
    """The NLL of the tokens from `first` on, in float64, without a batch."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].double()
    scores = logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    return -scores[first - 1 :].sum().item()


def test_a_corpus_perplexity_uses_totals_and_is_not_the_mean_of_its_texts(tiny):
    model, tokenizer = tiny
    result = perplexity(model, tokenizer, TEXTS)
    encoded = [tokenizer(text).input_ids for text in TEXTS]
    total = sum(nll(model, ids) for ids in encoded if len(ids) > 1)
    assert result.tokens == sum(max(0, len(ids) - 1) for ids in encoded)
    assert result.nll == pytest.approx(total, abs=5e-5 * result.tokens)
    assert result.perplexity == math.exp(result.nll / result.tokens)
    whole = Likelihood.total(result.per_text)
    for field in ("nll", "tokens", "unscored", "words", "bytes"):
        assert getattr(result, field) == getattr(whole, field)
    scored = [part.perplexity for part in result.per_text if part.tokens]
    assert abs(result.perplexity - sum(scored) / len(scored)) > 0.1


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1),
    st.integers(1, 20),
    st.sampled_from(["left", "right"]),
)
@example(TEXTS, 4, "left")
def test_the_value_does_not_depend_on_batches_padding_or_order(texts, batch_size, side):
    model, tokenizer = load("tiny")
    options = {"batch_size": batch_size, "padding_side": side, "bos": True}
    if not any(texts):
        with pytest.raises(ValueError, match="no token to score"):
            perplexity(model, tokenizer, texts, **options)
        return
    result = perplexity(model, tokenizer, texts, **options)
    backwards = perplexity(model, tokenizer, texts[::-1], **options)
    for text, part, other in zip(texts, result.per_text, backwards.per_text[::-1], strict=True):
        alone = nll(model, [tokenizer.bos_token_id, *tokenizer(text).input_ids]) if text else 0
        assert part.nll == pytest.approx(alone, abs=5e-5 * max(1, part.tokens))
        assert part.nll == pytest.approx(other.nll, abs=5e-5 * max(1, part.tokens))
        assert part.bytes == len(text.encode()) and part.words == len(text.split())
        assert not part.tokens or part.perplexity >= 1


def test_with_a_bos_the_first_token_is_scored_and_the_bos_is_not(tiny):
    model, tokenizer = tiny
    ids = tokenizer(TEXTS[0]).input_ids
    for bos, prefix in ((True, tokenizer.bos_token_id), (7, 7), (0, 0), (1, 1)):
        result = perplexity(model, tokenizer, TEXTS[0], bos=bos)
        assert (result.tokens, result.unscored) == (len(ids), 0)
        assert result.nll == pytest.approx(nll(model, [prefix, *ids]), abs=5e-5 * len(ids))


def test_the_tokenizers_special_tokens_are_not_added(tiny):
    from tokenizers.processors import TemplateProcessing

    model, tokenizer = tiny
    plain = perplexity(model, tokenizer, TEXTS[0])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", tokenizer.bos_token_id)]
    )
    assert tokenizer("a").input_ids == [tokenizer.bos_token_id, 97]
    assert perplexity(model, tokenizer, TEXTS[0]) == plain


def test_unscored_tokens_are_printed_and_long_texts_give_no_warning(tiny, recwarn, caplog):
    assert "6 texts, 5 first tokens unscored (no BOS)" in str(perplexity(*tiny, TEXTS))
    assert "unscored" not in str(perplexity(*tiny, TEXTS, bos=True))
    perplexity(*tiny, "a" * 3000, stride=1500)
    assert not recwarn.list and not caplog.records


@given(st.integers(0, 300), st.integers(2, 60), st.data())
def test_windows_score_each_token_once_with_the_documented_context(length, max_length, data):
    stride = data.draw(st.integers(1, max_length - 1))
    spans = windows(length, max_length, stride)
    scored = [t for window in spans for t in range(window.first, window.end)]
    assert scored == list(range(1, length))
    for window in spans:
        assert 0 < window.end - window.start <= max_length
        assert window.first > window.start
    for window in spans[1:]:
        assert window.first - window.start == max_length - stride
        assert 1 <= window.end - window.first <= stride


def test_texts_that_are_too_long_raise_an_error_and_empty_ones_add_nothing(tiny):
    with pytest.raises(ValueError, match="text 5 has 80 tokens, but max_length is 64: give a str"):
        perplexity(*tiny, TEXTS, max_length=64)
    with pytest.raises(ValueError, match="text 0 has 2049 tokens, but max_length is 2048"):
        perplexity(*tiny, "a" * 2048, bos=True)
    assert perplexity(*tiny, "a" * 2049, stride=1024).tokens == 2048
    result = perplexity(*tiny, ["", "A", "ab"])
    assert [part.tokens for part in result.per_text] == [0, 0, 1]
    assert [part.unscored for part in result.per_text] == [0, 1, 1]
    assert math.isnan(result.per_text[0].perplexity)
    assert result.nll == perplexity(*tiny, "ab").nll


def test_what_cannot_be_scored_raises_an_error(tiny):
    model, tokenizer = tiny
    larger = copy.deepcopy(tokenizer)
    larger.add_tokens(["unknown"])
    without_bos = copy.deepcopy(tokenizer)
    without_bos.bos_token = None
    no_context = {"max_length": 64, "stride": 64}
    require_refusals(
        (model, tokenizer, None, {}, "TypeError: texts must be a string or a list of strings"),
        (model, tokenizer, ["a", None], {}, "TypeError: text 1 must be a string"),
        (model, tokenizer, ["a", "b\ud800"], {}, "text 1 contains half a character"),
        (model, tokenizer, ["A", ""], {}, "no token to score"),
        (tokenizer, model, TEXTS, {}, "TypeError: tokenizer must be a transformers tokenizer, got"),
        (model, larger, "an unknown word", {}, "use the tokenizer that belongs to the model"),
        (model, tokenizer, TEXTS, no_context, "from 1 to max_length - 1 = 63, got"),
        (model, tokenizer, TEXTS, no_context | {"stride": 0}, "from 1 to max_length - 1 = 63, got"),
        (model, tokenizer, TEXTS, {"max_length": 1}, "at least 2 and at most 2048, the model's"),
        (model, tokenizer, TEXTS, {"max_length": 4096}, "at least 2 and at most 2048, the model's"),
        (model, tokenizer, TEXTS, {"bos": -1}, "bos must be"),
        (model, tokenizer, TEXTS, {"bos": 259}, "bos must be"),
        (model, without_bos, TEXTS, {"bos": True}, "no BOS token"),
        of=lambda model, tokenizer, texts, options: perplexity(model, tokenizer, texts, **options),
        errors=(TypeError, ValueError),
    )
    require_refusals(
        (-1, 5, 2, "must be"), (10, None, 2, "must be"), (10, 5, True, "must be"), of=windows
    )


def test_texts_may_come_from_a_generator_and_the_tokenizer_needs_no_pad_token(tiny):
    model, tokenizer = tiny
    with_pad = perplexity(model, tokenizer, TEXTS)
    tokenizer.pad_token = None
    assert perplexity(model, tokenizer, (text for text in TEXTS)) == with_pad
