"""Batches contain every example once, and padding changes no loss."""

import re
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.datasets import load_examples
from course_pkg.finetuning.batches import batches, collate
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample, tokenize_example

TOKENIZED = st.lists(st.integers(0, 258), min_size=1, max_size=9).map(
    lambda ids: TokenizedExample(tuple(ids), tuple(ids))
)
SINGLES = [TokenizedExample((token,), (token,)) for token in range(10)]


def ids_of(batch):
    return batch["input_ids"].flatten().tolist()


@given(st.lists(TOKENIZED, min_size=1, max_size=6))
def test_a_batch_holds_every_token_and_masks_all_padding(examples):
    batch = collate(examples, pad_token_id=7)
    longest = max(len(example.input_ids) for example in examples)
    assert {tuple(tensor.shape) for tensor in batch.values()} == {(len(examples), longest)}
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    for row, example in enumerate(examples):
        kept = batch["attention_mask"][row] == 1
        assert batch["input_ids"][row][kept].tolist() == list(example.input_ids)
        assert batch["labels"][row][kept].tolist() == list(example.labels)
        assert set(batch["input_ids"][row][~kept].tolist()) <= {7}
        assert set(batch["labels"][row][~kept].tolist()) <= {IGNORE_INDEX}
        assert kept[0]


@torch.no_grad()
def test_padding_does_not_change_the_loss(tiny):
    examples = [tokenize_example(e, tiny.tokenizer) for e in load_examples()[:3]]
    batch = collate(examples, tiny.tokenizer.pad_token_id)
    total = count = 0
    for example in examples:
        targets = sum(label != IGNORE_INDEX for label in example.labels[1:])
        total += tiny.model(**collate([example], 0)).loss.item() * targets
        count += targets
    assert tiny.model(**batch).loss.item() == pytest.approx(total / count, rel=1e-5)


def test_a_seed_shuffles_and_keeps_every_example_once():
    found = [ids_of(batch) for batch in batches(SINGLES, 4, 0, seed=1)]
    assert [len(ids) for ids in found] == [4, 4, 2]
    assert list(chain(*found)) != list(range(10))
    assert sorted(chain(*found)) == list(range(10))


def test_a_seed_gives_the_same_order_without_the_global_generator():
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


@pytest.mark.parametrize(
    ("examples", "size", "says"),
    [
        ([], 4, "at least one example, got 0"),
        (SINGLES, 0, "batch_size must be an integer of at least 1, got 0"),
        (SINGLES, 2.5, "batch_size must be an integer of at least 1, got 2.5"),
    ],
)
def test_no_examples_or_an_invalid_batch_size_is_an_error(examples, size, says):
    with pytest.raises(ValueError, match=says):
        batches(examples, size, 0)


def test_examples_that_are_not_tokenized_and_a_missing_pad_token_are_refused():
    with pytest.raises(TypeError, match=re.escape("call tokenize_example(example, tokenizer)")):
        batches(load_examples()[:2], 2, 0)
    with pytest.raises(TypeError, match="pad_token_id must be a token id, got None; if the token"):
        batches(SINGLES, 2, None)  # even if these examples need no padding


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="at least one example"):
        collate([], 0)
