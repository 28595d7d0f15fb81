"""Labels are set only for what the model should learn; what can't be used is counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.finetuning.batches import collate
from course_pkg.finetuning.conversations import Problem, RecordError
from course_pkg.finetuning.formats import (
    ChatTemplateError,
    as_dicts,
    chat_prompt,
    chat_text,
    with_template,
)
from course_pkg.finetuning.masking import (
    IGNORE_INDEX,
    TokenizedExample,
    tokenize_conversation,
    tokenize_conversations,
    tokenize_example,
)
from course_pkg.lm.tiny import CHAT_TEMPLATE, tiny_tokenizer
from course_pkg.pages.datasets import load_examples
from tests.tables import each_row

from .templates import (
    CONTENT,
    HEADER,
    MARKED,
    NO_SYSTEM,
    chat,
    learned,
    marked,
    replaced,
    tokenizer_with,
)

TOKENIZER = tiny_tokenizer()
# Hypothesis also draws strings of the package's code; no special token is without a "|".
CHARACTERS = st.characters(exclude_characters="|", exclude_categories=("Cs",))
TEXTS = st.text(CHARACTERS, min_size=1).filter(str.strip)
SHORT = chat("Hi", "Yo", id="short")
LONG = chat("Hi", "Yo", "Bye", "So long", id="long")


@given(TEXTS, TEXTS)
def test_one_example_is_its_prompt_and_its_answer_encoded_apart(prompt, response):
    tokenized = tokenize_example(prompt, response, TOKENIZER)
    before = TOKENIZER(chat_prompt(prompt, TOKENIZER)).input_ids
    answer = [*response.encode(), TOKENIZER.eos_token_id]
    assert tokenized.input_ids == (*before, *answer)
    assert tokenized.labels == (*[IGNORE_INDEX] * len(before), *answer)


@pytest.mark.model
def test_smollm2_reads_in_training_what_it_reads_in_use(smollm2):
    tokenizer = smollm2.tokenizer
    pairs = [(each.prompt, each.response) for each in load_examples("navigator", "held-out")]
    for prompt, answer in [*pairs, ("Hi", " Yo"), ("Hi", "\n\nYo"), ("Hi", "中文\n")]:
        tokenized = tokenize_example(prompt, answer, tokenizer)
        before = tokenizer(chat_prompt(prompt, tokenizer)).input_ids
        assert list(tokenized.input_ids[: len(before)]) == before
        assert learned(tokenized, tokenizer) == [f"{answer}<|im_end|>"]


@pytest.mark.model
def test_smollm2s_tokens_of_a_chat_equal_its_templates(smollm2):
    tokenizer = smollm2.tokenizer
    chats = [chat(each.prompt, each.response) for each in load_examples("navigator", "held-out")]
    for conversation in [*chats, chat("Hi", "Yo, 你好!", "And 3 + 4?", "7", system="Be brief.")]:
        whole = tokenizer.apply_chat_template(
            as_dicts(conversation.messages), tokenize=True, return_dict=False
        )
        tokenized = tokenize_conversation(conversation, tokenizer)
        assert list(tokenized.input_ids) == whole[:-1] and tokenizer.decode(whole[-1:]) == "\n"
        answers = [f"{message.content}<|im_end|>" for message in conversation.answers]
        assert learned(tokenized, tokenizer) == answers


@given(TEXTS, TEXTS)
def test_marked_answers_equal_the_mask_of_transformers(first, second):
    tokenizer = tokenizer_with(MARKED)
    conversation = chat("Hi", first, second, "Yo")
    whole = tokenizer.apply_chat_template(
        as_dicts(conversation.messages), return_dict=True, return_assistant_tokens_mask=True
    )
    tokenized = tokenize_conversation(conversation, tokenizer)
    assert list(tokenized.input_ids) == whole["input_ids"][:-1]
    assert [label != IGNORE_INDEX for label in tokenized.labels] == whole["assistant_masks"][:-1]


@each_row("template", [CHAT_TEMPLATE, MARKED])
@each_row("answers", ["all", "last"])
def test_an_answer_is_learned_with_its_end_token_and_nothing_else(template, answers):
    tokenizer = tokenizer_with(template)
    conversation = chat("Hi", "Yo", "Bye", "So long", system="Rhyme.")
    tokenized = tokenize_conversation(conversation, tokenizer, answers=answers)
    text = chat_text(conversation.messages, tokenizer)
    assert TOKENIZER.decode(tokenized.input_ids) == text.removesuffix("\n")
    expected = ["Yo<|im_end|>", "So long<|im_end|>"]
    assert learned(tokenized, TOKENIZER) == (expected if answers == "all" else expected[1:])


def test_the_end_token_is_learned_although_it_also_pads():
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    pair = [tokenize_conversation(chat("Hi", answer), tokenizer) for answer in ("Yo", "Y")]
    labels = collate(pair, tokenizer.pad_token_id)["labels"].tolist()
    assert [row.count(tokenizer.eos_token_id) for row in labels] == [1, 1]


def test_a_mark_may_include_the_header_and_what_follows_the_end_token():
    tokenizer = tokenizer_with(marked("''", f"{HEADER} + {CONTENT} + '<|im_end|>\n'", "''"))
    tokenized = tokenize_conversation(chat("Hi", "Yo"), tokenizer)
    assert learned(tokenized, tokenizer) == ["<|im_start|>assistant\nYo<|im_end|>"]


@each_row(
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


@each_row("token", ["<|im_end|>", "<|endoftext|>"])
def test_a_text_with_a_special_token_is_refused(token):
    with pytest.raises(RecordError, match="special token in text: turn 2 contains") as error:
        tokenize_conversation(chat("Hi", f"Write {token}."), TOKENIZER)
    assert token in str(error.value)


def test_a_tokenizer_without_an_end_token_is_refused():
    endless = tiny_tokenizer()
    endless.eos_token = None
    with pytest.raises(ValueError, match="the tokenizer has no end token"):
        tokenize_example("Why?", "So.", endless)


@each_row(
    ("call", "error", "says"),
    [
        (lambda: TokenizedExample((1, 2), (1,)), ValueError, "a label for each of 2 token ids, go"),
        (lambda: tokenize_example("Why?", None, TOKENIZER), TypeError, "must be a string"),
        (lambda: tokenize_conversation("Hi", TOKENIZER), TypeError, "be a Conversation, got 'Hi'"),
        (
            lambda: tokenize_conversation(SHORT, TOKENIZER, answers="first"),
            ValueError,
            "answers must be one of all, last, got 'first'",
        ),
        (
            lambda: tokenize_conversations([SHORT], TOKENIZER, max_length=1),
            ValueError,
            "max_length must be an integer of at least 2, got 1",
        ),
    ],
)
def test_other_arguments_are_refused(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_without_a_limit_every_conversation_is_kept():
    result = tokenize_conversations(iter([SHORT, LONG]), TOKENIZER, answers="last")
    assert result.examples == tuple(
        tokenize_conversation(each, TOKENIZER, answers="last") for each in (SHORT, LONG)
    )
    assert str(result.report) == "2 records: 2 kept, 0 problems"


def test_too_long_conversations_are_left_out_and_counted():
    short, long = (len(tokenize_conversation(each, TOKENIZER).input_ids) for each in (SHORT, LONG))
    for limit, kept in ((short - 1, 0), (short, 1), (long - 1, 1), (long, 2)):
        result = tokenize_conversations([SHORT, LONG], TOKENIZER, max_length=limit)
        assert len(result.examples) == result.report.kept == kept
        assert result.report.problems == tuple(
            Problem(name, "too long", f"{length} tokens, the limit is {limit}")
            for name, length in (("short", short), ("long", long))
            if length > limit
        )


def test_conversations_that_the_template_refuses_are_counted():
    odd = chat("What is <|im_end|>?", "A token.")
    conversations = [SHORT, chat("Hi", "Yo", system="Rhyme."), odd]
    result = tokenize_conversations(conversations, with_template(TOKENIZER, NO_SYSTEM))
    assert [(problem.where, problem.kind) for problem in result.report.problems] == [
        ("a conversation", "refused by the template"),
        ("a conversation", "special token in text"),
    ]
    assert len(result.examples) == 1


def test_a_template_that_hides_the_answers_stops_at_once():
    hiding = replaced("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>'")
    with pytest.raises(ChatTemplateError, match="writes a conversation differently"):
        tokenize_conversations([SHORT, LONG], hiding)


class Counting:
    """A tokenizer that counts the characters it encodes and the messages it renders."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.characters = 0
        self.messages = 0

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def __call__(self, text, **options):
        self.characters += len(text)
        return self.tokenizer(text, **options)

    def apply_chat_template(self, messages, **options):
        self.messages += len(messages)
        return self.tokenizer.apply_chat_template(messages, **options)


@each_row("template", [CHAT_TEMPLATE, MARKED])
def test_the_work_for_a_chat_grows_with_its_turns_and_not_with_their_square(template):
    work = []
    for exchanges in (10, 40):
        counting = Counting(tokenizer_with(template))
        texts = [f"turn {number:03}" for number in range(2 * exchanges)]
        tokenized = tokenize_conversation(chat(*texts, system="Be brief."), counting)
        assert learned(tokenized, TOKENIZER) == [f"{text}<|im_end|>" for text in texts[1::2]]
        work.append((counting.characters, counting.messages))
    (few, rendered), (many, rendered_many) = work
    assert many < 4.2 * few and rendered_many < 4.4 * rendered


@given(st.lists(TEXTS, min_size=2, max_size=8).filter(lambda texts: len(texts) % 2 == 0))
def test_turn_by_turn_a_long_chat_has_the_tokens_of_its_prefixes(texts):
    """An earlier answer's tokens don't change when the chat goes on."""
    whole = tokenize_conversation(chat(*texts), TOKENIZER)
    for turns in range(2, len(texts), 2):
        start = tokenize_conversation(chat(*texts[:turns]), TOKENIZER)
        assert whole.input_ids[: len(start.input_ids)] == start.input_ids
        assert whole.labels[: len(start.labels)] == start.labels
