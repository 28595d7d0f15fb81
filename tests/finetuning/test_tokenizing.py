"""Conversations that are too long or can't be used are counted, never dropped in silence."""

import pytest

from course_pkg.finetuning.formats import ChatTemplateError
from course_pkg.finetuning.masking import tokenize_conversation
from course_pkg.finetuning.tokenizing import tokenize_conversations
from course_pkg.lm.tiny import tiny_tokenizer

from .templates import chat, learned, replaced

TOKENIZER = tiny_tokenizer()
SHORT, LONG = chat("Hi", "Yo", id="short"), chat("Hi", "Yo", "Bye", "So long", id="long")


def listed(result):
    return [(problem.where, problem.kind, problem.detail) for problem in result.report.problems]


def test_without_a_limit_every_conversation_is_kept():
    result = tokenize_conversations(iter([SHORT, LONG]), TOKENIZER, answers="last", strict=True)
    assert result.examples == tuple(
        tokenize_conversation(each, TOKENIZER, answers="last") for each in (SHORT, LONG)
    )
    assert str(result.report) == "2 records: 2 kept, 0 problems"


def test_too_long_conversations_are_left_out_and_counted():
    lengths = [len(tokenize_conversation(each, TOKENIZER).input_ids) for each in (SHORT, LONG)]
    for limit, kept in ((lengths[0] - 1, 0), (lengths[0], 1), (lengths[1] - 1, 1), (lengths[1], 2)):
        result = tokenize_conversations([SHORT, LONG], TOKENIZER, max_length=limit)
        assert len(result.examples) == result.report.kept == kept
        assert listed(result) == [
            (name, "too long", f"{length} tokens, the limit is {limit}")
            for name, length in zip(("short", "long"), lengths, strict=True)
            if length > limit
        ]


def test_truncation_keeps_the_start_and_says_which_answers_are_whole():
    whole = tokenize_conversation(LONG, TOKENIZER)
    ends = [index + 1 for index, label in enumerate(whole.labels) if label == 258]
    for limit, detail, texts in (
        (len(whole.labels) - 1, "1 of 2 answers whole", ["Yo<|im_end|>", "So long"]),
        (ends[0] + 3, "1 of 2 answers whole", ["Yo<|im_end|>"]),
        (ends[0], "1 of 2 answers whole", ["Yo<|im_end|>"]),
        (ends[0] - 1, "0 of 2 answers whole", ["Yo"]),
    ):
        result = tokenize_conversations([LONG], TOKENIZER, max_length=limit, too_long="truncate")
        [example] = result.examples
        assert example.input_ids == whole.input_ids[:limit]
        assert learned(example, TOKENIZER) == texts
        cut = f"{len(whole.labels)} tokens cut to {limit}"
        assert listed(result) == [("long", "truncated", f"{cut}; {detail}")]


def test_an_answer_cut_away_entirely_is_a_problem():
    start = next(
        i for i, label in enumerate(tokenize_conversation(SHORT, TOKENIZER).labels) if label > 0
    )
    result = tokenize_conversations([SHORT, LONG], TOKENIZER, max_length=start, too_long="truncate")
    assert result.examples == () and result.report.counts() == {"no answer left": 2}
    assert listed(result)[0] == ("short", "no answer left", f"{start + 3} tokens cut to {start}")


def test_conversations_that_the_template_refuses_are_counted():
    strict = replaced(
        "{% for message in messages %}",
        "{% for message in messages %}{% if message['role'] == 'system' %}"
        "{{ raise_exception('no system turns') }}{% endif %}",
    )
    odd = chat("What is <|im_end|>?", "A token.")
    result = tokenize_conversations([SHORT, chat("Hi", "Yo", system="Rhyme."), odd], strict)
    assert [problem[:2] for problem in listed(result)] == [
        ("a conversation", "refused by the template"),
        ("a conversation", "special token in text"),
    ]
    assert len(result.examples) == 1


def test_strict_mode_stops_at_the_first_problem():
    for option in ("leave out", "truncate"):
        with pytest.raises(ValueError, match=r"^long: (too long|truncated): 55 tokens"):
            tokenize_conversations(
                [SHORT, LONG], TOKENIZER, max_length=40, too_long=option, strict=True
            )


def test_a_template_that_hides_the_answers_stops_at_once():
    hiding = replaced("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>'")
    with pytest.raises(ChatTemplateError, match="writes a conversation differently"):
        tokenize_conversations([SHORT, LONG], hiding)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_length": 1}, "max_length must be an integer of at least 2, got 1"),
        ({"max_length": 9, "too_long": "drop"}, r"too_long must be one of .*, got 'drop'"),
        ({"answers": "first"}, r"answers must be one of .*, got 'first'"),
    ],
)
def test_other_options_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        tokenize_conversations([SHORT], TOKENIZER, **options)
