"""Block manager, scheduler and paged attention under a decoder: greedy tokens as without them."""

import dataclasses

import pytest
import torch

from course_pkg.attention.paged import PagedBatch, copy_blocks, write
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.decoder_config import DecoderConfig
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.greedy import recompute
from course_pkg.serving.scheduler import Scheduler
from course_pkg.serving.sequence import Sequence
from course_pkg.serving.swap_space import SwapSpace


def decoder(*windows):
    sizes = {"vocab_size": 259, "hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    given = {"model_type": "llama", "max_position_embeddings": 64} | sizes | heads
    config = dataclasses.replace(DecoderConfig.from_dict(given), windows=windows)
    model, generator = Decoder(config), torch.Generator().manual_seed(0)
    for parameter in model.requires_grad_(False).parameters():
        if parameter.dim() == 2:
            parameter.normal_(std=0.25, generator=generator)
    return model.double()  # so that no two logits are as near as the error


def new_caches(config, blocks):
    shape = blocks + 1, config.kv_heads, 4, config.head_dim
    return [
        tuple(torch.full(shape, torch.nan, dtype=torch.float64) for _ in "kv")
        for _ in range(config.layers)
    ]


def step(model, scheduler, caches, host):
    """What an engine does in a step, without sampling."""
    plan, blocks = scheduler.schedule(), scheduler.blocks
    for layer, there in zip(caches, host, strict=True):
        copy_blocks(layer, there, plan.swap_out)
        copy_blocks(there, layer, plan.swap_in)
        copy_blocks(layer, layer, plan.copies)
    ids, positions, slots, starts = [], [], [], [0]
    for sequence, start, count, _ in plan.scheduled:
        ids += sequence.tokens[start : start + count]
        positions += range(start, start + count)
        slots += blocks.slots(sequence, start, count)
        starts.append(starts[-1] + count)
    tables = [blocks.table(entry.sequence) for entry in plan.scheduled]
    lengths = [entry.start + entry.count for entry in plan.scheduled]
    batches = [
        PagedBatch(caches[0], tables, lengths, starts, window=model.config.window(layer))
        for layer in range(model.config.layers)
    ]

    def attend(layer, query, key, value):
        packed = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
        write(caches[layer], *packed[1:], torch.tensor(slots))
        return batches[layer].attend(packed[0], caches[layer]).transpose(0, 1)[None]

    logits = model(torch.tensor([ids]), torch.tensor(positions), attend)[0]  # (tokens, vocab)
    rows = zip(plan.scheduled, starts[1:], strict=True)
    best = {e.sequence.id: int(logits[last - 1].argmax()) for e, last in rows if e.samples}
    scheduler.update(plan, best)
    return plan


@pytest.mark.parametrize("windows", [(None, None), (6, None)])
@pytest.mark.parametrize("swap", [0, 9])
def test_requests_that_come_and_are_preempted_generate_what_they_would_alone(windows, swap):
    model, generator = decoder(*windows), torch.Generator().manual_seed(1)
    manager = BlockManager(13, 4)
    space = SwapSpace(manager, swap) if swap else None
    scheduler = Scheduler(manager, token_budget=9, max_sequences=4, swap_space=space)
    caches, host = new_caches(model.config, 13), new_caches(model.config, swap)
    shared = torch.randint(259, (9,), generator=generator).tolist()  # the first 9 tokens of some
    sequences = []
    for index, length in enumerate((11, 3, 5, 12, 1, 8, 4)):
        own = torch.randint(259, (length,), generator=generator).tolist()
        prompt = [*shared, *own] if index % 2 == 0 else own
        sequences.append(Sequence(str(index), prompt, 6 + 3 * (index % 3)))
    plans = []
    for sequence in sequences:
        scheduler.add(sequence)
        plans += [step(model, scheduler, caches, host) for _ in range(2)]
    while scheduler.has_work:
        plans.append(step(model, scheduler, caches, host))
    for sequence in sequences:
        alone = recompute(model, torch.tensor([sequence.prompt]), sequence.max_new_tokens)
        assert sequence.new_tokens == alone[0].tolist()
    # The case has all that could go wrong: preemption, hits, chunks and mixed steps.
    assert sum(len(plan.preempted) for plan in plans) >= 2
    assert any(plan.swap_in for plan in plans) == bool(swap)
    assert sum(sequence.hit_tokens for sequence in sequences) >= 16
    assert any(not entry.samples for plan in plans for entry in plan.scheduled)
    assert any(len({e.count > 1 for e in plan.scheduled}) == 2 for plan in plans)
