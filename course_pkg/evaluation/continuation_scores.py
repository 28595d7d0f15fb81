"""Log-probabilities of continuations, in few passes: what sequences share is computed once.

Sequences are sorted. One pass of the decoder reads a tree of as many as fit (`token_tree`); then
only the path that the next sequence shares stays in the cache. Models that `course_pkg.lm.decoder`
cannot run, such as GPT-2, read whole sequences. Source: Biderman et al. 2024, "Lessons from the
Trenches" (arXiv 2405.14782), appendix A.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_pkg.common.arguments import require_integer, require_list
from course_pkg.evaluation.masked_cache import MaskedCache
from course_pkg.evaluation.token_tree import TokenTree, shared_length
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.model_errors import ModelError
from course_pkg.metrics.perplexity.token_scores import plan_batches

Progress = Callable[[float], None]  # gets the share of long work that is done, from 0 to 1


def silent(share: float) -> None:
    """Progress that nobody sees."""


@dataclass(frozen=True)
class ContinuationScore:
    """A continuation's log-probabilities in nats; greedy: each token is the most probable one."""

    log_probs: tuple[float, ...]
    greedy: bool

    @property
    def total(self) -> float:
        return math.fsum(self.log_probs)


def score_continuations(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    first: Sequence[int],
    *,
    tokens_per_pass: int = 256,
    progress: Progress = silent,
) -> list[ContinuationScore]:
    """Score each sequence's tokens from position `first` on; the tokens before are context.

    Args:
        model: a Decoder, or a causal model of transformers, in evaluation mode.
        first: for each sequence, the first scored position, at least 1 and below its length.
        tokens_per_pass: the most in a forward pass, except that no sequence is divided.
        progress: gets the share of the sequences that are scored, after each.
    """
    require_integer(tokens_per_pass, "tokens_per_pass")
    require_list(sequences, "sequences", "give a list of lists of token ids")
    decoder = as_decoder(model)
    _check(model if decoder is None else decoder, sequences, first)
    if decoder is None:
        passes = _padded_passes(model, sequences, first, tokens_per_pass)
    else:
        passes = _tree_passes(decoder, sequences, first, tokens_per_pass)
    scores: list[ContinuationScore | None] = [None] * len(sequences)
    for done, (number, values, best) in enumerate(passes, start=1):
        if any(map(math.isnan, values)):
            raise FloatingPointError(
                f"the model's log-probabilities for sequence {number} are NaN: check its weights, "
                "or load it in float32 if it is in half precision"
            )
        scores[number] = ContinuationScore(tuple(values), all(best))
        progress(done / len(sequences))
    return scores


def as_decoder(model: nn.Module) -> Decoder | None:
    """The course's decoder for a model, which shares its tensors; None if it cannot run it."""
    if isinstance(model, Decoder):
        return model
    try:
        return Decoder.from_transformers(model)
    except ModelError:
        return None


Scored = tuple[int, list[float], list[bool]]  # sequence, log-probabilities, whether most probable


def _tree_passes(
    decoder: Decoder, sequences: Sequence[Sequence[int]], first: Sequence[int], budget: int
) -> Iterator[Scored]:
    """Score the sequences from the smallest to the largest, several in a pass."""
    rest = sorted(range(len(sequences)), key=lambda number: tuple(sequences[number]), reverse=True)
    cache = MaskedCache(decoder.config)
    cached: list[int] = []  # the tokens that the cache holds
    while rest:
        tree = TokenTree(cached)
        nodes_of: dict[int, list[int]] = {}
        while rest:
            read = sequences[rest[-1]][:-1]  # the last token is only predicted
            new_from = first[rest[-1]] - 1  # the last token of the context, which predicts
            if nodes_of and len(tree) + tree.missing(read, new_from) > budget:
                break
            last = rest.pop()
            nodes_of[last] = tree.add(read, new_from)
        scored = {
            number: nodes[first[number] - len(sequences[number]) :]
            for number, nodes in nodes_of.items()
        }
        yield from _read(decoder, cache, tree, sequences, scored)
        shared = shared_length(sequences[last][:-1], sequences[rest[-1]]) if rest else 0
        path = nodes_of[last]
        before = len(sequences[last]) - 1 - len(path)
        kept = [*range(before), *(len(cached) + node for node in path)][:shared]
        cache.keep(torch.tensor(kept, dtype=torch.long))
        cached = list(sequences[last][:shared])


@torch.no_grad()
def _read(
    decoder: Decoder,
    cache: MaskedCache,
    tree: TokenTree,
    sequences: Sequence[Sequence[int]],
    scored: dict[int, list[int]],
) -> Iterator[Scored]:
    """One pass over a tree. scored: for each sequence, the nodes that predict scored tokens."""
    device = decoder.embed_tokens.weight.device
    among = torch.zeros(len(tree), len(tree), dtype=torch.bool)  # (nodes, nodes)
    for node, parent in enumerate(tree.parents):
        if parent != -1:
            among[node] = among[parent]
        among[node, node] = True
    above = torch.arange(len(tree.cached)) < torch.tensor(tree.seen)[:, None]  # (nodes, cached)
    seen = torch.cat((above, among), dim=1)[None].to(device)  # (1, nodes, cached + nodes)
    ids = torch.tensor([tree.tokens], device=device)  # (1, nodes)
    positions = torch.tensor([tree.positions], device=device)  # (1, nodes)
    rows = sorted({node for nodes in scored.values() for node in nodes})
    attend = cache.attend(positions, seen)
    logits = decoder(ids, positions, attend, rows=torch.tensor(rows, device=device))[0]
    row_of = {node: row for row, node in enumerate(rows)}
    for number, nodes in scored.items():
        targets = sequences[number][-len(nodes) :]
        yield number, *_pick(logits, [row_of[node] for node in nodes], targets)


@torch.no_grad()
def _padded_passes(
    model: nn.Module, sequences: Sequence[Sequence[int]], first: Sequence[int], budget: int
) -> Iterator[Scored]:
    """Score whole sequences with any causal model in evaluation mode, in batches."""
    lengths = [len(sequence) - 1 for sequence in sequences]
    for batch in plan_batches(lengths, len(sequences), budget):
        longest = max(lengths[number] for number in batch)
        rows = [
            [*sequences[number][:-1], *[0] * (longest - lengths[number])]  # any id pads
            for number in batch
        ]
        ids = torch.tensor(rows, device=next(model.parameters()).device)  # (batch, longest)
        # From the end, because prompt tuning puts virtual tokens before the text.
        outputs = model(input_ids=ids).logits[:, -longest:]  # (batch, longest, vocab)
        for number, logits in zip(batch, outputs, strict=True):
            places = range(first[number] - 1, lengths[number])
            yield number, *_pick(logits, places, sequences[number][first[number] :])


def _pick(
    logits: Tensor, rows: Sequence[int], targets: Sequence[int]
) -> tuple[list[float], list[bool]]:
    """The log-probabilities of targets by rows of logits, and whether each is the largest."""
    chosen = logits[list(rows)]  # (targets, vocab)
    chosen = chosen.to(torch.promote_types(chosen.dtype, torch.float32))
    wanted = torch.tensor(targets, device=chosen.device)[:, None]  # (targets, 1)
    log_probs = chosen.gather(1, wanted)[:, 0] - chosen.logsumexp(-1)  # (targets,)
    best = chosen.argmax(-1) == wanted[:, 0]  # (targets,)
    return log_probs.tolist(), best.tolist()


def _check(model: nn.Module, sequences: Sequence[Sequence[int]], first: Sequence[int]) -> None:
    if isinstance(model, Decoder):
        vocabulary, longest = model.config.vocab_size, model.config.max_positions
    else:
        config = model.config.get_text_config()
        if config.is_encoder_decoder or not model.can_generate():
            raise ValueError(
                f"{type(model).__name__} does not predict each token from those before it: load "
                "the model with AutoModelForCausalLM"
            )
        if model.training:
            raise ValueError("the model is in training mode, with dropout: call model.eval()")
        vocabulary = config.vocab_size
        longest = getattr(config, "max_position_embeddings", None)
    if len(first) != len(sequences):
        raise ValueError(f"first has {len(first)} positions for {len(sequences)} sequences")
    for number, (ids, start) in enumerate(zip(sequences, first, strict=True)):
        if not 1 <= start < len(ids):
            raise ValueError(
                f"sequence {number} has {len(ids)} tokens, and scoring begins at {start}: it needs "
                "at least one token of context and one to score"
            )
        if not 0 <= min(ids) <= max(ids) < vocabulary:
            raise ValueError(
                f"sequence {number} has ids from {min(ids)} to {max(ids)}, but the model knows 0 "
                f"to {vocabulary - 1}: use the tokenizer that belongs to it"
            )
        if longest is not None and len(ids) - 1 > longest:
            raise ValueError(
                f"sequence {number} has {len(ids)} tokens, but the model can read {longest}: "
                "shorten the prompt, or use fewer examples"
            )
