import math

import pytest
import torch

from course_pkg.evaluation.answer_perplexity import answer_perplexity
from tests.evaluation.test_multiple_choice import merging_tokenizer
from tests.refusals import require_refusals

PROMPTS = ["2 + 2 = ", "What is ice?\n"]
ANSWERS = ["4", "Frozen water."]


def log_probs(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().log_softmax(-1)


def test_it_is_the_mean_over_the_answers_tokens_given_all_that_precedes(tiny):
    result = answer_perplexity(*tiny, PROMPTS, ANSWERS)
    total = []
    for prompt, answer, likelihood in zip(PROMPTS, ANSWERS, result.per_text, strict=True):
        ids = list((prompt + answer).encode())  # the tokenizer's tokens are bytes
        scores = log_probs(tiny.model, ids)
        start = len(prompt)
        expected = [-scores[i - 1, ids[i]].item() for i in range(start, len(ids))]
        assert likelihood.tokens == len(answer) and likelihood.nll == pytest.approx(
            sum(expected), rel=1e-5
        )
        total += expected
    assert result.perplexity == pytest.approx(math.exp(sum(total) / len(total)), rel=1e-5)
    assert result.bytes == sum(map(len, ANSWERS))


def test_the_chat_template_belongs_to_the_prompt(tiny):
    result = answer_perplexity(*tiny, ["What is ice?"], ["Frozen water."], chat=True)
    tokens = tiny.tokenizer("Frozen water.", add_special_tokens=False).input_ids
    assert result.tokens == len(tokens)
    messages = [{"role": "user", "content": "What is ice?"}]
    ids = tiny.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    scores = log_probs(tiny.model, [*ids, *tokens])
    expected = -sum(scores[len(ids) + i - 1, token].item() for i, token in enumerate(tokens))
    assert result.nll == pytest.approx(expected, rel=1e-4)


def test_a_token_that_joins_prompt_and_answer_is_scored(tiny):
    tokenizer = merging_tokenizer("ab")
    result = answer_perplexity(tiny.model, tokenizer, ["c a"], ["b"])
    assert result.tokens == 1  # "ab"


def test_pairs_that_cannot_be_scored_raise_an_error(tiny):
    def score(prompts, answers):
        return lambda: answer_perplexity(*tiny, prompts, answers)

    tokenizer = merging_tokenizer("ab", bos=None)
    require_refusals(
        (score(["a", "b"], ["c"]), "2 prompts, but 1 answers"),
        (score(["", "b"], ["c", "d"]), "pair 0 has an empty prompt"),
        (score(["a", "b"], ["c", ""]), "pair 1 has an empty prompt or answer"),
        (score(["a" * 5000], ["b"]), "but the model reads"),
        (lambda: answer_perplexity(tiny.model, tokenizer, ["a"], ["b"]), "can't be divided in"),
    )
