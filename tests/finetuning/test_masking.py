"""Labels are set only for the tokens that the model should learn."""

import pytest

from course_pkg.finetuning.formats import chat_prompt
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample, tokenize_example
from course_pkg.lm.datasets import Example, load_examples
from course_pkg.lm.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def test_the_prompt_is_masked_and_the_end_token_is_not():
    example = Example("1", "any", "Why?", "Because 中.")
    tokenized = tokenize_example(example, TOKENIZER)
    prompt = TOKENIZER(chat_prompt("Why?", TOKENIZER)).input_ids
    assert list(tokenized.input_ids[: len(prompt)]) == prompt
    assert set(tokenized.labels[: len(prompt)]) == {IGNORE_INDEX}
    answer = tokenized.labels[len(prompt) :]
    assert answer == tokenized.input_ids[len(prompt) :]
    assert TOKENIZER.decode(answer) == "Because 中.<|im_end|>"


def test_an_example_has_as_many_labels_as_tokens():
    with pytest.raises(ValueError, match="a label for each of 2 token ids, got 1"):
        TokenizedExample((1, 2), (1,))


@pytest.mark.parametrize(
    "example", [{"prompt": "Why?", "response": "So."}, "Why?", Example("1", "any", "Why?", None)]
)
def test_what_is_not_an_example_of_strings_is_refused(example):
    with pytest.raises(TypeError, match=r"must be (an Example|a string), got"):
        tokenize_example(example, TOKENIZER)


def test_a_tokenizer_without_an_end_token_is_refused():
    endless = tiny_tokenizer()
    endless.eos_token = None
    with pytest.raises(ValueError, match="the tokenizer has no end token"):
        tokenize_example(Example("1", "any", "Why?", "So."), endless)


@pytest.mark.model
def test_training_tokens_equal_those_of_smollm2s_chat_template(smollm2):
    tokenizer = smollm2.tokenizer
    for example in load_examples("navigator", "held-out"):
        turns = [
            {"role": "user", "content": example.prompt},
            {"role": "assistant", "content": example.response},
        ]
        whole = tokenizer.apply_chat_template(turns, tokenize=False)
        ids = tokenizer(whole, add_special_tokens=False).input_ids
        trained_on = list(tokenize_example(example, tokenizer).input_ids)
        assert ids[: len(trained_on)] == trained_on
        assert tokenizer.decode(ids[len(trained_on) :]) == "\n"
