"""The model runner: the tensors of a step. It copies blocks, runs the decoder, and gives logits.

All tokens of a step, of prompts and of sequences that generate, are one packed row (1, tokens) for
the decoder. They meet only in attention, where each sequence reads the blocks of its own table.
Not here: what a step contains (`scheduler`), the choice of tokens.
Chapter: serving/continuous-batching.
"""

from collections.abc import Mapping
from itertools import accumulate, groupby

import torch
from torch import Tensor

from course_pkg.attention.paged import copy_blocks, write
from course_pkg.attention.paged_triton import paged_batch
from course_pkg.lm.decoder import Decoder
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.kv_cache import cache_bytes
from course_pkg.serving.lora_rows import with_adapters
from course_pkg.serving.step import Scheduled, Step


class ModelRunner:
    """A decoder, its adapters, and the keys and values of all blocks, on the device and the host.

    blocks: those that sequences can have; block 0 is added, for padding. Each sequence's cache_key
    is the name of its adapter, or "". Raises what `with_adapters` raises.
    """

    def __init__(
        self,
        decoder: Decoder,
        blocks: int,
        block_size: int,
        swap_blocks: int = 0,
        adapters: Mapping | None = None,
    ):
        self.decoder, self.groups = with_adapters(decoder, adapters or {})
        self.device = decoder.embed_tokens.weight.device
        dtype, config = decoder.embed_tokens.weight.dtype, decoder.config

        def new(count: int, device: torch.device | str) -> list[tuple[Tensor, Tensor]]:
            shape = (count + 1, config.kv_heads, block_size, config.head_dim)
            empty = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2 * len(layers))]
            return list(zip(empty[::2], empty[1::2], strict=True))

        layers = range(config.layers)
        self.caches, self.host = new(blocks, self.device), new(swap_blocks, "cpu")

    @torch.inference_mode()
    def run(self, step: Step, blocks: BlockManager) -> tuple[list[tuple[Scheduled, slice]], Tensor]:
        """Compute a step: (rows, vocab) of logits, and which rows each scheduled entry has.

        An entry has one row for the token that it samples, the last; with prompt log-probabilities,
        it has a row for each of its tokens.
        """
        for cache, host in zip(self.caches, self.host, strict=True):
            copy_blocks(cache, host, step.swap_out)
            copy_blocks(host, cache, step.swap_in)
            copy_blocks(cache, cache, step.copies)
        entries = sorted(step.scheduled, key=_adapter)
        if not entries:
            return [], torch.empty(0, self.decoder.config.vocab_size)
        starts = list(accumulate((entry.count for entry in entries), initial=0))
        self.groups[:] = _groups(entries)
        ids, positions, slots, wanted, rows = [], [], [], [], []
        for (sequence, start, count, samples), first in zip(entries, starts, strict=False):
            ids += sequence.tokens[start : start + count]
            positions += range(start, start + count)
            slots += blocks.slots(sequence, start, count)
            needed = count if sequence.prompt_logprobs else int(samples)
            rows.append(slice(len(wanted), len(wanted) + needed))
            wanted += range(first + count - needed, first + count)
        ids, positions, slots, wanted = (
            torch.tensor(each, dtype=torch.long, device=self.device)
            for each in (ids, positions, slots, wanted)
        )
        tables = [blocks.table(entry.sequence) for entry in entries]
        lengths = [entry.start + entry.count for entry in entries]
        windows = {
            window: paged_batch(self.caches[0], tables, lengths, starts, window=window)
            for window in set(self.decoder.config.windows)
        }

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            # (1, heads, tokens, head_dim) to (tokens, heads, head_dim) and back
            cache = self.caches[layer]
            write(cache, key[0].transpose(0, 1), value[0].transpose(0, 1), slots)
            batch = windows[self.decoder.config.window(layer)]
            return batch.attend(query[0].transpose(0, 1), cache).transpose(0, 1)[None]

        logits = self.decoder(ids[None], positions, attend, rows=wanted)[0]  # (rows, vocab)
        return list(zip(entries, rows, strict=True)), logits


def block_bytes(decoder: Decoder, block_size: int) -> int:
    """The memory of one block: keys and values of block_size tokens in all layers."""
    c, width = decoder.config, decoder.embed_tokens.weight.itemsize
    return cache_bytes(c.layers, c.kv_heads, c.head_dim, block_size, bytes_per_value=width)


def _adapter(entry: Scheduled) -> str:
    return entry.sequence.cache_key


def _groups(entries: list[Scheduled]) -> list[tuple[str, slice]]:
    """The rows of each adapter; the entries are sorted by it."""
    groups, first = [], 0
    for name, members in groupby(entries, key=_adapter):
        last = first + sum(entry.count for entry in members)
        groups.append((name, slice(first, last)))
        first = last
    return groups
