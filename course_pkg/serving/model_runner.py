"""The model runner: the tensors of a step. It copies blocks, runs the decoder, and gives logits.

All tokens of a step, of prompts and of sequences that generate, are one packed row (1, tokens) for
the decoder. They meet only in attention, where each sequence reads the blocks of its own table.
"""

from collections.abc import Mapping
from itertools import accumulate, groupby

import torch
from torch import Tensor

from course_pkg.acceleration.attention.paged import copy_blocks, places, write
from course_pkg.acceleration.attention.paged_triton import paged_batch
from course_pkg.acceleration.quantization.quantized_decoder import freeze
from course_pkg.lm.decoder import Decoder
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.kv_cache import cache_bytes
from course_pkg.serving.lora_rows import with_adapters
from course_pkg.serving.scheduler import Step
from course_pkg.serving.sequence import Sequence


class ModelRunner:
    """A decoder, its adapters, and the keys and values of all blocks, on the device and the host.

    Args:
        blocks: those that sequences can have; block 0 is added, for padding. Each sequence's
            cache_key is the name of its adapter, or "". Later changes of quantized weights in place
            have no effect (`freeze`).
    """

    def __init__(
        self,
        decoder: Decoder,
        blocks: int,
        block_size: int,
        swap_blocks: int = 0,
        adapters: Mapping | None = None,
    ):
        rope = decoder.config.rope["rope_type"]
        if rope in ("dynamic", "longrope"):
            raise ValueError(
                f"the model's RoPE is {rope}, which depends on the longest sequence of a batch: "
                "use transformers' generate"
            )
        separate, self.groups = with_adapters(decoder, adapters or {})
        self.decoder = freeze(separate)
        self.device = decoder.embed_tokens.weight.device
        self.caches = _new_caches(decoder, blocks, block_size, self.device)
        self.host = _new_caches(decoder, swap_blocks, block_size, "cpu")

    @torch.inference_mode()
    def run(self, step: Step, manager: BlockManager) -> tuple[dict[Sequence, slice], Tensor]:
        """Compute a step; returns the logits, (rows, vocab), and before them each sequence's rows.

        A sequence that samples has one row, for its last token; with prompt log-probabilities, it
        has a row for each of its tokens.
        """
        for cache, host in zip(self.caches, self.host, strict=True):
            copy_blocks(cache, host, step.swap_out)
            copy_blocks(host, cache, step.swap_in)
            copy_blocks(cache, cache, step.copies)
        if not step.scheduled:
            return {}, torch.empty(0, self.decoder.config.vocab_size)
        scheduled = sorted(step.scheduled.items(), key=lambda item: item[0].cache_key)
        starts = list(accumulate((len(tokens) for _, tokens in scheduled), initial=0))
        self.groups[:] = _adapter_rows(scheduled)
        sampling = set(step.sampling)
        ids = []
        positions = []
        slots = []
        wanted = []
        rows = {}
        for (sequence, tokens), end in zip(scheduled, starts[1:], strict=True):
            ids += sequence.tokens[tokens.start : tokens.stop]
            positions += tokens
            slots += manager.slots(sequence, tokens.start, len(tokens))
            needed = len(tokens) if sequence.prompt_logprobs else int(sequence in sampling)
            rows[sequence] = slice(len(wanted), len(wanted) + needed)
            wanted += range(end - needed, end)
        where = places(self._indices(slots), self.caches[0][0].shape[2])
        tables = [manager.table(sequence) for sequence, _ in scheduled]
        lengths = [tokens.stop for _, tokens in scheduled]
        windows = {
            window: paged_batch(self.caches[0], tables, lengths, starts, window=window)
            for window in set(self.decoder.config.windows)
        }

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            # (1, heads, tokens, head_dim) to (tokens, heads, head_dim) and back
            cache = self.caches[layer]
            write(cache, key[0].transpose(0, 1), value[0].transpose(0, 1), where)
            batch = windows[self.decoder.config.window(layer)]
            return batch.attend(query[0].transpose(0, 1), cache).transpose(0, 1)[None]

        logits = self.decoder(
            self._indices(ids)[None], self._indices(positions), attend, rows=self._indices(wanted)
        )
        return rows, logits[0]  # (rows, vocab)

    def _indices(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.device)


def block_bytes(decoder: Decoder, block_size: int) -> int:
    """The memory of one block: keys and values of block_size tokens in all layers."""
    config = decoder.config
    width = decoder.embed_tokens.weight.itemsize
    return cache_bytes(
        config.layers, config.kv_heads, config.head_dim, block_size, bytes_per_value=width
    )


def _new_caches(
    decoder: Decoder, blocks: int, block_size: int, device: torch.device | str
) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer, (blocks + 1, kv_heads, block_size, head_dim)."""
    config = decoder.config
    shape = (blocks + 1, config.kv_heads, block_size, config.head_dim)
    dtype = decoder.embed_tokens.weight.dtype

    def new() -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return [(new(), new()) for _ in range(config.layers)]


def _adapter_rows(scheduled: list[tuple[Sequence, range]]) -> list[tuple[str, slice]]:
    """The rows of each adapter; the sequences are sorted by it."""
    groups = []
    first = 0
    for name, members in groupby(scheduled, key=lambda item: item[0].cache_key):
        last = first + sum(len(tokens) for _, tokens in members)
        groups.append((name, slice(first, last)))
        first = last
    return groups
