"""The course's text is what its README says; examples become batches without a loss."""

import re
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.lm.data import (
    IGNORE,
    Example,
    TokenizedExample,
    batches,
    chat_prompt,
    collate,
    follows_log_format,
    load_examples,
    load_texts,
    tokenize_example,
)
from course_pkg.lm.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
TOKENIZED = st.lists(st.integers(0, 258), min_size=1, max_size=9).map(
    lambda ids: TokenizedExample(tuple(ids), tuple(ids))
)


def test_the_navigator_set_has_its_sizes_and_no_question_twice():
    train, held_out = load_examples("navigator", "train"), load_examples("navigator", "held-out")
    assert (len(train), len(held_out)) == (120, 30)
    everything = train + held_out
    for field in ("id", "prompt", "response"):
        assert len({getattr(example, field) for example in everything}) == 150
    assert {example.topic for example in held_out} == {example.topic for example in train}


def test_no_sentence_of_the_held_out_answers_is_in_the_training_answers():
    def sentences(split):
        lines = (example.response.splitlines() for example in load_examples(split=split))
        return {line.split(": ", 1)[1] for answer in lines for line in answer}

    assert len(sentences("train")) == 360
    assert not sentences("train") & sentences("held-out")


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_every_answer_keeps_the_form_and_every_question_asks(split):
    for example in load_examples("navigator", split):
        assert follows_log_format(example.response), example.id
        assert example.prompt.endswith("?") and not example.prompt.startswith("LOG")
        orders = example.response.rsplit("ORDERS: ", 1)[1]
        assert len(orders.split()) <= 10, example.id


def test_the_passages_are_forty_of_three_to_sixty_words():
    texts = load_texts("passages")
    lengths = [len(text.split()) for text in texts]
    assert len(set(texts)) == 40
    assert min(lengths) >= 3 and max(lengths) <= 60 and max(lengths) > 40


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        ("LOG: Calm.\nCAUSE: No wind.\nORDERS: Row!", True),
        ("  LOG: Calm.\nCAUSE: No wind.\nORDERS: Row.\n", True),
        ("LOG: Calm.\nORDERS: Row.\nCAUSE: No wind.", False),
        ("LOG: Calm.\nCAUSE: No wind.", False),
        ("LOG: Calm.\nCAUSE: No wind.\nORDERS: Row.\nLOG: Calm.", False),
        ("Sure! LOG: Calm.\nCAUSE: No wind.\nORDERS: Row.", False),
        ("LOG: \nCAUSE: No wind.\nORDERS: Row.", False),
        ("log: Calm.\ncause: No wind.\norders: Row.", False),
        ("LOG: Calm.\nCAUSE: No wind.\nORDERS: Row", False),
        ("", False),
    ],
)
def test_the_form_is_told_from_what_is_near_it(text, follows):
    assert follows_log_format(text) is follows


@pytest.mark.parametrize("ask", [load_examples, load_texts])
def test_an_unknown_set_or_split_is_told_which_exist(ask):
    with pytest.raises(ValueError, match=r"sets are (navigator/train|passages/test)"):
        ask("navigator", "validation")


def test_the_prompt_is_masked_and_the_end_token_is_not():
    example = Example("1", "any", "Why?", "Because 中.")
    tokenized = tokenize_example(example, TOKENIZER)
    prompt = TOKENIZER(chat_prompt("Why?", TOKENIZER)).input_ids
    assert list(tokenized.input_ids[: len(prompt)]) == prompt
    assert set(tokenized.labels[: len(prompt)]) == {IGNORE}
    answer = tokenized.labels[len(prompt) :]
    assert answer == tokenized.input_ids[len(prompt) :]
    assert TOKENIZER.decode(answer) == "Because 中.<|im_end|>"


@pytest.mark.model
def test_smollm2_is_trained_on_what_its_template_writes(smollm2):
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


def test_an_example_that_is_too_long_is_refused_not_cut():
    example = Example("long-one", "any", "Why?", "Because." * 50)
    with pytest.raises(ValueError, match=r"'long-one' has \d+ tokens and max_length is 64"):
        tokenize_example(example, TOKENIZER, max_length=64)


def test_a_tokenizer_without_a_chat_template_is_refused():
    plain = tiny_tokenizer()
    plain.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        chat_prompt("Why?", plain)


@given(st.lists(TOKENIZED, min_size=1, max_size=6), st.sampled_from(["left", "right"]))
def test_a_batch_holds_every_token_and_masks_every_pad(examples, side):
    batch = collate(examples, pad_token_id=7, padding_side=side)
    longest = max(len(example.input_ids) for example in examples)
    assert {tuple(tensor.shape) for tensor in batch.values()} == {(len(examples), longest)}
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    for row, example in enumerate(examples):
        kept = batch["attention_mask"][row] == 1
        assert batch["input_ids"][row][kept].tolist() == list(example.input_ids)
        assert batch["labels"][row][kept].tolist() == list(example.labels)
        assert set(batch["input_ids"][row][~kept].tolist()) <= {7}
        assert set(batch["labels"][row][~kept].tolist()) <= {IGNORE}
        assert kept[0 if side == "right" else -1]


@torch.no_grad()
def test_padding_does_not_change_the_loss(tiny):
    examples = [tokenize_example(e, tiny.tokenizer) for e in load_examples()[:3]]
    batch = collate(examples, tiny.tokenizer.pad_token_id)
    total = count = 0
    for example in examples:
        targets = sum(label != IGNORE for label in example.labels[1:])
        total += tiny.model(**collate([example], 0)).loss.item() * targets
        count += targets
    assert tiny.model(**batch).loss.item() == pytest.approx(total / count, rel=1e-5)


def ids_of(batch):
    return batch["input_ids"].flatten().tolist()


SINGLES = [TokenizedExample((token,), (token,)) for token in range(10)]


def test_each_epoch_holds_every_example_once_in_an_order_of_its_own():
    found = [ids_of(batch) for batch in batches(SINGLES, 4, 0, seed=1, epochs=2)]
    assert [len(ids) for ids in found] == [4, 4, 2, 4, 4, 2]
    first, second = list(chain(*found[:3])), list(chain(*found[3:]))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_the_same_seed_gives_the_same_order_and_the_global_generator_is_not_used():
    def order(seed):
        return [ids_of(batch) for batch in batches(SINGLES, 3, 0, seed=seed)]

    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    assert order(1) == order(1) != order(2)
    assert torch.equal(torch.rand(2), expected)


def test_without_a_seed_the_order_is_kept():
    kept = chain.from_iterable(ids_of(batch) for batch in batches(SINGLES, 3, 0))
    assert list(kept) == list(range(10))


@pytest.mark.parametrize(("examples", "size"), [([], 4), (SINGLES, 0)])
def test_nothing_to_batch_is_refused_at_once(examples, size):
    with pytest.raises(ValueError, match=re.escape(f"{len(examples)} examples in batches of")):
        batches(examples, size, 0)


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="at least one example"):
        collate([], 0)
