"""Answers are found by the template's marks, or by what each turn adds; never by their text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from course_pkg.finetuning.formats import ChatTemplateError, answer_spans
from course_pkg.finetuning.masking import encode_at
from course_pkg.lm.tiny import tiny_tokenizer
from tests.tables import each_row

from .templates import CONTENT, HEADER, MARKED, chat, marked, replaced, tokenizer_with

TEXTS = st.text(alphabet="ab \n.中", min_size=1, max_size=6).filter(str.strip)


def spans(conversation, tokenizer):
    text, found = answer_spans(conversation, tokenizer)
    return [text[start:end] for start, end in found]


@given(st.lists(TEXTS, min_size=1, max_size=3), st.none() | TEXTS)
def test_marks_and_renderings_find_the_same_answers(texts, system):
    conversation = chat(*(text for text in texts for _ in "qa"), system=system)
    added = spans(conversation, tiny_tokenizer())
    assert added == [f"{text}<|im_end|>\n" for text in texts]
    assert spans(conversation, tokenizer_with(MARKED)) == [f"{text}<|im_end|>" for text in texts]


def test_an_answer_whose_text_is_in_the_prompt_is_not_confused_with_it():
    text, [first, second] = answer_spans(chat("Say Yo", "Yo", "Yo", "Yo"), tiny_tokenizer())
    assert text[: first[0]] == "<|im_start|>user\nSay Yo<|im_end|>\n<|im_start|>assistant\n"
    assert text[first[1] : second[0]] == "<|im_start|>user\nYo<|im_end|>\n<|im_start|>assistant\n"


def test_two_marks_in_one_answer_are_one_span():
    template = marked(HEADER, CONTENT, "").replace(
        "{% endgeneration %}{{  }}",
        "{% endgeneration %}{% generation %}{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}",
    )
    found = spans(chat("Hi", "Yo", "Hm", "Ho"), tokenizer_with(template))
    assert found == ["Yo<|im_end|>", "Ho<|im_end|>"]


@each_row("mark", ["{%- generation -%}", "{%generation%}", "{%+ generation %}"])
def test_marks_are_recognized_in_every_form(mark):
    tokenizer = tokenizer_with(MARKED.replace("{% generation %}", mark))
    assert spans(chat("Hi", "Yo"), tokenizer) == ["Yo<|im_end|>"]


@each_row(
    ("old", "new"),
    [
        # only the last answer keeps its white space
        (CONTENT, "(message['content'] if loop.last else message['content'] | trim)"),
        # an end token only at the end of the conversation
        ("{% endfor %}", "{% endfor %}{% if not add_generation_prompt %}<end>{% endif %}"),
        # the prompt starts a thought that past answers don't have
        ("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'"),
        # the system turn moves to the last user turn
        (CONTENT, "('Rhyme. ' if loop.revindex == 2 else '') + message['content']"),
    ],
)
def test_a_template_that_rewrites_earlier_turns_is_refused(old, new):
    with pytest.raises(ChatTemplateError, match="once it goes on: rendered up to turn 2"):
        spans(chat("Hi", "Yo \n", "Bye", "So long"), replaced(old, new))


def test_the_error_shows_where_the_renderings_differ():
    tokenizer = replaced("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>'")
    shared = len("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    says = f"the text has '<think>' at character {shared}, the whole has 'Yo<|im_end|>\\n'; use a"
    with pytest.raises(ChatTemplateError, match=re.escape(says)):
        spans(chat("Hi", "Yo"), tokenizer)


@each_row(
    ("written", "says"),
    [
        (f"({CONTENT} if message['role'] != 'system' else '')", "turn 1, by the system: 'rhyme.'"),
        (f"({CONTENT} | lower)", "turn 3, by the assistant: 'Yo'"),
    ],
)
def test_a_template_that_leaves_out_or_changes_a_text_is_refused(written, says):
    tokenizer = replaced(f"{CONTENT} +", f"{written} +")
    with pytest.raises(ChatTemplateError, match=f"leaves out or changes {says}"):
        spans(chat("hi", "Yo", system="rhyme."), tokenizer)


def test_a_template_that_marks_only_some_answers_is_refused():
    template = MARKED.replace("{% if message['role'] ==", "{% if loop.last and message['role'] ==")
    with pytest.raises(ChatTemplateError, match=r"marks 1 parts as generated in .* with 2 answers"):
        spans(chat("Hi", "Yo", "Bye", "So"), tokenizer_with(template))


def test_boundaries_after_a_split_are_counted_from_the_start():
    tokenizer = word_tokenizer(["\n", "\n\n", "a", "b"])
    assert len(tokenizer("a\n\nb\n\na").input_ids) == 5
    ids, counts = encode_at("a\n\nb\n\na", [0, 2, 4, 5, 7], tokenizer)
    assert tokenizer.convert_ids_to_tokens(ids) == ["a", "\n", "\n", "b", "\n", "\n", "a"]
    assert counts == [0, 2, 4, 5, 7]


def word_tokenizer(pieces, prefix=""):
    """A tokenizer of these pieces that prefers long ones, and may put a prefix before each text."""
    vocabulary = {piece: index for index, piece in enumerate([*pieces, "?", prefix or "!"])}
    tokenizer = Tokenizer(models.Unigram([(p, -1.0) for p in vocabulary], unk_id=len(pieces)))
    tokenizer.decoder = decoders.Fuse()
    if prefix:  # as Llama 2's tokenizer does with a space
        tokenizer.normalizer = normalizers.Prepend(prefix)
        tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(prefix, 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")


def test_a_tokenizer_that_changes_the_second_part_of_a_text_is_refused():
    tokenizer = word_tokenizer(["\n", "\n\n", "a", "b"], prefix="_")
    assert encode_at("ab", [1], tokenizer)[1] == [2]  # _ a | b
    with pytest.raises(ValueError, match="encoded in two parts; remove the white space at the st"):
        encode_at("a\n\nb", [2], tokenizer)
