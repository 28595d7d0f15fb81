"""Batches contain every example once, and padding changes no loss."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.finetuning.batches import batches, collate
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample, tokenize_example
from course_pkg.pages.datasets import load_examples
from tests.tables import each_row

TOKENIZED = st.lists(st.integers(0, 258), min_size=1, max_size=9).map(
    lambda ids: TokenizedExample(tuple(ids), tuple(ids))
)
SINGLES = [TokenizedExample((token,), (token,)) for token in range(10)]


def order(size, seed=None):
    """The token ids of each batch of SINGLES."""
    return [each["input_ids"].flatten().tolist() for each in batches(SINGLES, size, 0, seed=seed)]


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


def test_every_example_comes_once_in_an_order_that_depends_on_the_seed_alone():
    assert list(chain(*order(3))) == list(range(10)), "without a seed, the order is kept"
    shuffled = order(4, seed=1)
    assert [len(ids) for ids in shuffled] == [4, 4, 2]
    assert sorted(chain(*shuffled)) == list(range(10)) != list(chain(*shuffled))
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    assert order(3, seed=1) == order(3, seed=1) != order(3, seed=2)
    assert torch.equal(torch.rand(2), expected), "the global generator is not used"


@each_row(
    ("call", "error", "says"),
    [
        (lambda: collate([], 0), ValueError, "at least one example"),
        (lambda: batches([], 4, 0), ValueError, "at least one example, got 0"),
        (lambda: order(0), ValueError, "batch_size must be an integer of at least 1, got 0"),
        (lambda: collate(["Hi"], 0), TypeError, r"call tokenize_example\(example, tokenizer\)"),
        (lambda: collate(SINGLES, None), TypeError, "must be a token id, got None; if the token"),
    ],
)
def test_what_cannot_be_batched_is_refused(call, error, says):
    with pytest.raises(error, match=says):
        call()
