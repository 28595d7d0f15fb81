"""Batches contain every example once; neither padding nor packing changes losses and gradients."""

import itertools
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.finetuning.batches import (
    batches,
    collate,
    count_targets,
    first_fit_decreasing,
    pack,
    packed_batches,
    padding_waste,
)
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample, tokenize_example
from course_pkg.lm.tiny import tiny_model
from course_pkg.pages.datasets import load_examples
from tests.refusals import require_refusals
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
    examples = [tokenize_example(e.prompt, e.response, tiny.tokenizer) for e in load_examples()[:3]]
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


def test_what_cannot_be_batched_is_refused():
    require_refusals(
        (lambda: collate([], 0), "ValueError: .*at least one example"),
        (lambda: batches([], 4, 0), "ValueError: .*at least one example, got 0"),
        (lambda: order(0), "ValueError: batch_size must be an integer of at least 1, got 0"),
        (lambda: collate(["Hi"], 0), r"TypeError: .*call tokenize_example\(prompt, response"),
        (lambda: collate(SINGLES, None), "TypeError: .*must be a token id, got None; if the token"),
        errors=(TypeError, ValueError),
    )


LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=12)


def samples(*lengths):
    """Random samples of these lengths; of every other one, the first half has no labels."""
    generator = torch.Generator().manual_seed(sum(lengths))
    made = []
    for number, length in enumerate(lengths):
        ids = torch.randint(256, (length,), generator=generator).tolist()
        masked = 0 if number % 2 else min(length // 2, 5)
        made.append(TokenizedExample(tuple(ids), (*[IGNORE_INDEX] * masked, *ids[masked:])))
    return made


def loss_and_gradients(model, batch):
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


@each_row("attention", ["sdpa", "eager"])
@each_row("length", [60, 97])
def test_losses_and_gradients_equal_those_of_separate_rows(attention, length):
    model = tiny_model().train()
    model.set_attn_implementation(attention)
    examples = samples(17, 60, 1, 31, 5, 2, 23, 9, 44)
    [batch] = packed_batches(examples, length, batch_size=len(examples), pad_token_id=0)
    assert len(batch["labels"]) < len(examples)
    loss, gradients = loss_and_gradients(model, collate(examples, 0))
    packed_loss, packed_gradients = loss_and_gradients(model, batch)
    assert packed_loss == pytest.approx(loss, rel=1e-5)
    assert (packed_gradients - gradients).norm() <= 1e-5 * gradients.norm()


def test_bf16_autocast_takes_the_mask():
    batch = packed_batches(samples(9, 7, 5), 16, 2, 0)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = tiny_model()(**batch).loss.item()
    assert loss == pytest.approx(tiny_model()(**batch).loss.item(), rel=1e-2)


def one_row(examples):
    return packed_batches(examples, sum(len(e.input_ids) for e in examples), 1, 0)[0]


def influence(batch, first):
    """How much the loss of a row's second sample depends on the embeddings of its first one."""
    model = tiny_model()
    embeddings = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    labels = batch["labels"].clone()
    labels[:, :first] = IGNORE_INDEX
    rest = {name: value for name, value in batch.items() if name not in ("input_ids", "labels")}
    model(inputs_embeds=embeddings, labels=labels, **rest).loss.backward()
    return embeddings.grad[:, :first].abs().max().item()


def test_a_sample_depends_on_no_other_sample_but_without_the_mask_it_does():
    examples = samples(20, 12)
    assert influence(one_row(examples), first=20) == 0
    ones = torch.ones(1, 32, dtype=torch.int64)
    assert influence(one_row(examples) | {"attention_mask": ones}, first=20) > 1e-3


def test_the_first_token_of_a_sample_is_nobodys_target():
    examples = [TokenizedExample((1, 2, 3), (1, 2, 3)), TokenizedExample((4, 5), (4, 5))]
    [batch] = packed_batches(examples, 6, 1, pad_token_id=9)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 9]]
    assert batch["labels"].tolist() == [[-100, 2, 3, -100, 5, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0]]
    assert count_targets(None, batch) == count_targets(None, collate(examples, 0))


@given(LENGTHS, st.integers(12, 20))
def test_every_sample_is_packed_once_and_rows_are_not_too_long(lengths, capacity):
    groups = first_fit_decreasing(lengths, capacity)
    assert sorted(itertools.chain(*groups)) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in group) <= capacity for group in groups)
    assert len(groups) <= 2 * sum(lengths) / capacity + 1  # no two rows are half empty
    rows = pack(samples(*lengths), capacity)
    assert [row.lengths for row in rows] == [tuple(lengths[i] for i in group) for group in groups]


def test_rows_keep_their_order_unless_there_is_a_seed():
    examples = samples(*range(1, 30))
    orders = [packed_batches(examples, 32, 2, 0, seed=seed).rows for seed in (1, 1, 2, None)]
    assert orders[0] == orders[1] != orders[2]
    assert list(itertools.chain(*orders[3])) == pack(examples, 32)


def test_batches_are_a_sequence_whose_last_may_be_smaller():
    batches = packed_batches(samples(5, 5, 5, 5, 5), 8, 2, 0)
    assert [len(batch["labels"]) for batch in batches] == [2, 2, 1] and len(batches) == 3
    last = batches[-1]
    assert last.pop("attention_mask").dtype == torch.float32
    assert {tensor.dtype for tensor in last.values()} == {torch.int64}


def test_waste_of_padding_by_hand():
    # plain:  (2, 10) (4, 10) (6, 8)  -> 20 + 20 + 16 positions for 40 tokens
    # sorted: (2, 4) (6, 8) (10, 10)  ->  8 + 16 + 20
    # packed: 10 + 2, 10, 8 + 4, 6    -> four rows of 12
    waste = padding_waste([2, 10, 4, 10, 6, 8], batch_size=2, row_length=12)
    assert (waste.plain, waste.sorted) == (pytest.approx(16 / 56), pytest.approx(4 / 44))
    assert waste.packed == pytest.approx(8 / 48)


def test_what_cannot_be_packed_is_refused():
    require_refusals(
        (lambda: pack([], 8), "packing needs at least one example, got 0"),
        (lambda: pack(samples(5, 9), 8), r"sample 1 has 9 tokens, more than the 8 of a row; set"),
        (lambda: pack([TokenizedExample((), ())], 8), "length 0 must be an integer of at least 1"),
        (lambda: first_fit_decreasing([1], 0), "capacity must be an integer of at least 1, got 0"),
        (lambda: packed_batches(samples(5), 8, 0, 0), "batch_size must be an integer of"),
        (lambda: padding_waste([], 2, 8), "padding_waste needs at least one length, got 0"),
    )
