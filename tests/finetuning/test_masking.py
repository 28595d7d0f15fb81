"""Labels are set only for the tokens that the model should learn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.datasets import Example, load_examples
from course_pkg.finetuning.batches import collate
from course_pkg.finetuning.formats import ChatTemplateError, as_dicts, chat_prompt, chat_text
from course_pkg.finetuning.masking import (
    IGNORE_INDEX,
    TokenizedExample,
    tokenize_conversation,
    tokenize_example,
)
from course_pkg.finetuning.problems import RecordError
from course_pkg.lm.tiny import CHAT_TEMPLATE, tiny_tokenizer

from .templates import CONTENT, HEADER, MARKED, chat, learned, marked, tokenizer_with

TOKENIZER = tiny_tokenizer()
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1).filter(str.strip)


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


@pytest.mark.parametrize("texts", [("", "So."), ("Why?", " \n")])
def test_a_blank_text_is_refused(texts):
    with pytest.raises(ValueError, match=r"the (user|assistant)'s text is"):
        tokenize_example(Example("1", "any", *texts), TOKENIZER)


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


def test_every_answer_is_learned_with_its_end_token_and_nothing_else():
    for tokenizer in (TOKENIZER, tokenizer_with(MARKED)):
        conversation = chat("Hi", "Yo", "Bye", "So long", system="Rhyme.")
        example = tokenize_conversation(conversation, tokenizer)
        text = chat_text(conversation.messages, tokenizer)
        assert TOKENIZER.decode(example.input_ids) == text.removesuffix("\n")
        assert learned(example, TOKENIZER) == ["Yo<|im_end|>", "So long<|im_end|>"]


def test_only_the_last_answer_is_learned_on_request():
    example = tokenize_conversation(chat("Hi", "Yo", "Bye", "Yo"), TOKENIZER, answers="last")
    every = tokenize_conversation(chat("Hi", "Yo", "Bye", "Yo"), TOKENIZER)
    assert learned(example, TOKENIZER) == ["Yo<|im_end|>"]
    assert example.input_ids == every.input_ids
    assert example.labels[-3:] == (*b"Yo", TOKENIZER.eos_token_id)


def test_the_end_token_is_learned_although_it_also_pads():
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    example = tokenize_conversation(chat("Hi", "Yo"), tokenizer)
    short = tokenize_conversation(chat("Hi", "Y"), tokenizer)
    labels = collate([example, short], tokenizer.pad_token_id)["labels"].tolist()
    assert [row.count(tokenizer.eos_token_id) for row in labels] == [1, 1]


def test_a_mark_may_include_the_header_and_what_follows_the_end_token():
    tokenizer = tokenizer_with(marked("''", f"{HEADER} + {CONTENT} + '<|im_end|>\n'", "''"))
    example = tokenize_conversation(chat("Hi", "Yo"), tokenizer)
    assert learned(example, tokenizer) == ["<|im_start|>assistant\nYo<|im_end|>"]


@pytest.mark.parametrize(
    "template",
    [
        marked(HEADER, CONTENT, "'<|im_end|>\n'"),
        marked("''", f"{HEADER} + {CONTENT}", "'<|im_end|>\n'"),
        CHAT_TEMPLATE.replace("<|im_end|>\n", "\n\n"),
    ],
)
def test_a_template_without_an_end_token_in_the_answer_is_refused(template):
    with pytest.raises(ChatTemplateError, match=r"Yo.* without a special token: .* never learn to"):
        tokenize_conversation(chat("Hi", "Yo"), tokenizer_with(template))


@pytest.mark.parametrize("token", ["<|im_end|>", "<|endoftext|>"])
def test_a_text_with_a_special_token_is_refused(token):
    with pytest.raises(RecordError, match="special token in text: turn 2 contains") as error:
        tokenize_conversation(chat("Hi", f"Write {token}."), TOKENIZER)
    assert token in str(error.value)


def test_other_arguments_are_refused():
    with pytest.raises(TypeError, match="conversation must be a Conversation, got 'Hi'"):
        tokenize_conversation("Hi", TOKENIZER)
    with pytest.raises(ValueError, match=r"answers must be one of \('all', 'last'\), got 'first'"):
        tokenize_conversation(chat("Hi", "Yo"), TOKENIZER, answers="first")


@given(TEXTS, TEXTS)
def test_one_example_is_its_prompt_and_its_answer_encoded_apart(prompt, response):
    example = tokenize_example(Example("1", "any", prompt, response), TOKENIZER)
    before = TOKENIZER(chat_prompt(prompt, TOKENIZER)).input_ids
    answer = [*response.encode(), TOKENIZER.eos_token_id]
    assert example.input_ids == (*before, *answer)
    assert example.labels == (*[IGNORE_INDEX] * len(before), *answer)


@pytest.mark.model
def test_smollm2_reads_in_training_what_it_reads_in_use(smollm2):
    tokenizer = smollm2.tokenizer
    for answer in ("Yo", " Yo", "\n\nYo", "中文\n"):
        example = tokenize_example(Example("1", "any", "Hi", answer), tokenizer)
        prompt = tokenizer(chat_prompt("Hi", tokenizer)).input_ids
        assert list(example.input_ids[: len(prompt)]) == prompt
        assert learned(example, tokenizer) == [f"{answer}<|im_end|>"]


@pytest.mark.model
def test_smollm2s_tokens_of_a_chat_equal_its_templates(smollm2):
    tokenizer = smollm2.tokenizer
    conversation = chat("Hi", "Yo, 你好!", "And 3 + 4?", "7", system="Be brief.")
    whole = tokenizer.apply_chat_template(
        as_dicts(conversation.messages), tokenize=True, return_dict=False
    )
    example = tokenize_conversation(conversation, tokenizer)
    assert list(example.input_ids) == whole[:-1] and tokenizer.decode(whole[-1:]) == "\n"
    assert learned(example, tokenizer) == ["Yo, 你好!<|im_end|>", "7<|im_end|>"]


@given(TEXTS, TEXTS)
def test_marked_answers_equal_the_mask_of_transformers(first, second):
    tokenizer = tokenizer_with(MARKED)
    conversation = chat("Hi", first, second, "Yo")
    whole = tokenizer.apply_chat_template(
        as_dicts(conversation.messages), return_dict=True, return_assistant_tokens_mask=True
    )
    example = tokenize_conversation(conversation, tokenizer)
    assert list(example.input_ids) == whole["input_ids"][:-1]
    assert [label != IGNORE_INDEX for label in example.labels] == whole["assistant_masks"][:-1]
