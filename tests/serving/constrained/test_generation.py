"""Constrained generation: transformers' generate and a plain loop, on the tiny model."""

import re

import pytest
import torch

from course_pkg.lm.load import load
from course_pkg.serving.constrained.decoding import (
    ConstrainedLogitsProcessor,
    constrain,
    generate_greedily,
)
from course_pkg.serving.constrained.guide import regex_guide
from course_pkg.serving.constrained.vocabulary import vocabulary_of
from tests.tables import each_row

MODEL, TOKENIZER = load("tiny")
VOCABULARY = vocabulary_of(TOKENIZER)
PATTERN = "(yes|no|n[éè]e), [0-9]{1,3}"
GUIDE = regex_guide(PATTERN, VOCABULARY)


def generate(prompts, processor, **options):
    batch = TOKENIZER(prompts, return_tensors="pt", padding=True)
    options = {"do_sample": False, "max_new_tokens": 20} | options
    out = MODEL.generate(**batch, logits_processor=[processor], **options)
    return TOKENIZER.batch_decode(out[:, batch.input_ids.shape[1] :], skip_special_tokens=True)


def greedy(prompt, guide=GUIDE, **options):
    generation = generate_greedily(MODEL, TOKENIZER(prompt).input_ids, guide, 20, **options)
    return TOKENIZER.decode(generation.tokens, skip_special_tokens=True), generation


def test_generate_and_the_plain_loop_write_the_same_text_in_batches_of_different_lengths():
    prompts = ["a", "a longer prompt", "é", "?!"]
    processor = ConstrainedLogitsProcessor(GUIDE)
    together = generate(prompts, processor)
    assert together == [greedy(prompt, jumps=False)[0] for prompt in prompts]
    assert all(re.fullmatch(PATTERN, text) for text in together)
    assert generate(prompts, processor) == together  # a processor can be used again


@each_row(
    "options",
    [{"num_beams": 3}, {"do_sample": True}, {"do_sample": True, "num_return_sequences": 4}],
)
def test_beams_and_samples_match(options):
    torch.manual_seed(0)
    texts = generate(["ab", "abc"], ConstrainedLogitsProcessor(GUIDE), **options)
    assert all(re.fullmatch(PATTERN, text) for text in texts)


def test_samples_reach_all_texts_of_a_small_language():
    torch.manual_seed(0)
    guide = regex_guide("[ab]{0,2}", VOCABULARY)
    options = {"do_sample": True, "num_return_sequences": 300}
    texts = generate(["x"], ConstrainedLogitsProcessor(guide), **options)
    assert set(texts) == {"", "a", "b", "aa", "ab", "ba", "bb"}


def test_each_row_can_have_its_own_guide_or_none():
    guides = [GUIDE, None, regex_guide("[ab]{2}", VOCABULARY)]
    processor = ConstrainedLogitsProcessor(guides)
    texts = generate(["x", "x", "x"], processor)
    assert texts[0] == greedy("x")[0] and re.fullmatch("[ab]{2}", texts[2])
    alone = MODEL.generate(
        **TOKENIZER("x", return_tensors="pt"), do_sample=False, max_new_tokens=20
    )
    assert texts[1] == TOKENIZER.decode(alone[0, 1:], skip_special_tokens=True)
    with pytest.raises(ValueError, match="3 guides for 2 rows"):
        generate(["x", "x"], processor)


def test_the_probabilities_of_allowed_tokens_keep_their_ratios():
    scores = torch.randn(2, len(VOCABULARY))
    masked = ConstrainedLogitsProcessor(GUIDE)(torch.tensor([[1], [2]]), scores)
    allowed = GUIDE.mask(GUIDE.start)
    assert torch.equal(masked[:, allowed], scores[:, allowed])
    assert (masked[:, ~allowed] == -torch.inf).all() and scores.isfinite().all()


def test_columns_beyond_the_vocabulary_are_not_allowed_and_missing_ones_an_error():
    mask = torch.tensor([[True, False], [False, True]])
    out = constrain(torch.zeros(2, 4), mask)
    assert out.isfinite().tolist() == [[True, False, False, False], [False, True, False, False]]
    with pytest.raises(ValueError, match="1 columns, the vocabulary 2 tokens"):
        constrain(torch.zeros(2, 1), mask)


def test_jumps_save_passes_and_keep_to_the_budget():
    guide = regex_guide('\\{"answer": (true|false), "sure": [0-9]\\}', VOCABULARY)
    _, plain = greedy("Is it?", guide, jumps=False)
    short = generate_greedily(MODEL, TOKENIZER("Is it?").input_ids, guide, 60)
    long = generate_greedily(MODEL, TOKENIZER("Is it?").input_ids, guide, 60, jumps=False)
    # With one token per byte, a text can be divided in one way only, so jumps change nothing.
    assert short.tokens == long.tokens and short.finished and long.finished
    assert long.passes == len(long.tokens) and short.passes == 2
    assert not plain.finished and len(plain.tokens) == 20 and long.tokens[:20] == plain.tokens
    guide = regex_guide("a{50}", VOCABULARY)
    cut = generate_greedily(MODEL, [65], guide, 7)
    assert len(cut.tokens) == 7 and not cut.finished and cut.passes == 0


def test_bad_arguments_of_the_loop_are_errors():
    with pytest.raises(ValueError, match="the prompt has no tokens"):
        generate_greedily(MODEL, [], GUIDE, 5)
    with pytest.raises(TypeError, match="prompt must be a list"):
        generate_greedily(MODEL, "text", GUIDE, 5)
    with pytest.raises(ValueError, match="max_new_tokens must be an integer of at least 1"):
        generate_greedily(MODEL, [1], GUIDE, 0)


@pytest.mark.model
def test_smollm2_writes_the_same_text_with_generate_and_with_the_loop(smollm2):
    model, tokenizer = smollm2
    vocabulary = vocabulary_of(tokenizer, model.generation_config.eos_token_id)
    guide = regex_guide(r"The answer is -?[0-9]{1,3}\.", vocabulary)
    ids = tokenizer("What is 6 times 7?\n", return_tensors="pt")
    processor = ConstrainedLogitsProcessor(guide)
    out = model.generate(**ids, logits_processor=[processor], do_sample=False, max_new_tokens=15)
    new = out[0, ids.input_ids.shape[1] :].tolist()
    long = generate_greedily(model, ids.input_ids[0].tolist(), guide, 15, jumps=False)
    short = generate_greedily(model, ids.input_ids[0].tolist(), guide, 15)
    assert new == long.tokens and long.finished and short.finished
    texts = [tokenizer.decode(g.tokens, skip_special_tokens=True) for g in (long, short)]
    assert all(re.fullmatch(r"The answer is -?[0-9]{1,3}\.", text) for text in texts)
    assert short.passes < long.passes
