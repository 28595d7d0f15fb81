"""Tokens of one's own examples: cut where an answer ends, split without a shared question."""

import json

import pytest

from course_pkg.finetuning.masking import IGNORE_INDEX
from course_pkg.finetuning.own_data import FinetuneError
from course_pkg.finetuning.own_data.data_file import read_data
from course_pkg.finetuning.own_data.token_examples import given_split, split_examples, tokenize_file
from course_pkg.lm.tiny import tiny_tokenizer
from tests.finetuning.templates import learned
from tests.tables import each_row

TOKENIZER = tiny_tokenizer()


def tokenized(folder, records, max_length=512):
    path = folder / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return tokenize_file(read_data(path), TOKENIZER, max_length)


def chat(*texts):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": t} for n, t in enumerate(texts)]}


def test_a_long_chat_is_cut_after_the_last_answer_that_fits_and_keeps_its_end_token(tmp_path):
    whole = tokenized(tmp_path, [chat("Hi", "Yo", "More?", "No" * 30)])
    short = tokenized(tmp_path, [chat("Hi", "Yo")])
    size = len(short.examples[0].pieces[0].input_ids)
    cut = tokenized(tmp_path, [chat("Hi", "Yo", "More?", "No" * 30)], max_length=size + 3)
    [piece] = cut.examples[0].pieces
    assert piece == short.examples[0].pieces[0]
    assert piece.labels[-1] == TOKENIZER.eos_token_id
    assert (cut.cut, cut.left_out) == (("line 1",), ())
    assert (cut.tokens, cut.lost) == (whole.tokens, whole.tokens - size)


def test_an_example_whose_answer_does_not_fit_is_left_out_and_counted(tmp_path):
    found = tokenized(tmp_path, [chat("Hi", "Yo" * 40), chat("Hi", "Yo")], max_length=40)
    assert (found.left_out, [each.id for each in found.examples]) == (("line 1",), ["line 2"])
    assert found.lost == found.tokens - len(found.examples[0].pieces[0].input_ids)
    with pytest.raises(FinetuneError, match="no example fits into 40 tokens; raise --max-length"):
        tokenized(tmp_path, [chat("Hi", "Yo" * 40)], max_length=40)


def test_an_answer_that_is_not_to_be_learned_is_read_and_has_no_label(tmp_path):
    record = chat("Q", "WRONG", "No", "right", "More?", "BAD")
    record["messages"][1]["weight"] = 0
    record["messages"][5]["train"] = False
    [example] = tokenized(tmp_path, [record]).examples
    [piece] = example.pieces
    assert learned(piece, TOKENIZER) == ["right<|im_end|>"]
    text = TOKENIZER.decode(piece.input_ids)
    assert "WRONG" in text and text.endswith("right<|im_end|>")
    assert (example.reference, example.question) == ("right", "user: Q\nassistant: WRONG\nuser: No")


@each_row("length", [1, 5, 9, 10, 11, 20, 21])
def test_no_token_of_a_plain_text_is_lost_and_each_piece_has_a_target(tmp_path, length):
    text = "abcdefghijklmnopqrstu"[:length]
    found = tokenized(tmp_path, [{"text": text}], max_length=10)
    pieces = found.examples[0].pieces
    ids = [token for piece in pieces for token in piece.input_ids]
    assert ids == [*text.encode(), TOKENIZER.eos_token_id]
    assert all(piece.labels == piece.input_ids and 2 <= len(piece.labels) <= 10 for piece in pieces)
    assert found.lost == 0 and IGNORE_INDEX not in ids


def test_a_special_token_in_a_text_is_an_error_with_its_line(tmp_path):
    with pytest.raises(FinetuneError, match="line 2: special token in text"):
        tokenized(tmp_path, [chat("Hi", "Yo"), chat("<|im_end|>", "Yo")])


def test_a_sample_is_asked_with_all_turns_but_the_last(tmp_path):
    one, two = tokenized(tmp_path, [chat("Hi", "Yo"), chat("A", "B", "C", "D")]).examples
    assert (one.question, one.reference) == ("Hi", "Yo")
    assert (two.question, two.reference) == ("user: A\nassistant: B\nuser: C", "D")
    assert two.prompt.endswith("<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n")


def test_a_split_never_has_a_question_on_both_sides_and_follows_from_the_seed(tmp_path):
    records = [chat(f"Question {n // 3}{'?' * (n % 2)}", f"Answer {n}") for n in range(60)]
    records += [chat("QUESTION  7?", "again")]
    examples = tokenized(tmp_path, records).examples
    drawn = [split_examples(examples, 0.2, seed) for seed in range(6)]
    for split in drawn:
        keys = [{each.key for each in side} for side in (split.train, split.validation)]
        assert keys[0].isdisjoint(keys[1])
        assert sorted([*split.train, *split.validation], key=str) == sorted(examples, key=str)
        assert 12 <= len(split.validation) <= 14
    assert split_examples(examples, 0.2, 3) == drawn[3]
    assert len({split.validation for split in drawn}) > 1


def test_a_split_of_too_few_examples_or_of_files_that_share_a_question_is_refused(tmp_path):
    examples = tokenized(tmp_path, [chat("a", "x"), chat("a", "y"), chat("b", "z")]).examples
    with pytest.raises(FinetuneError, match=r"too few .*: 2 \(those that begin with the same q"):
        split_examples(examples, 0.1, 0)
    with pytest.raises(FinetuneError, match=r"v.jsonl, line 2: .* ask the same in line 1"):
        given_split(examples[:1], examples[1:], "v.jsonl")
    assert given_split(examples[:2], examples[2:], "v.jsonl").validation == examples[2:]
