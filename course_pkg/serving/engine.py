"""The inference engine: requests in, text out, many at a time.

    engine = Engine(model, tokenizer, blocks=256)
    [request] = engine.generate(["The capital of France is"], SamplingParams(temperature=0))
    request.completions[0].text

A step schedules, computes, chooses and reports: `step` returns a Chunk for each sequence that got a
token, and `add` and `abort` may come between any two steps. The parts: `scheduler` and
`block_manager` decide without tensors; `model_runner` computes; `sampling` chooses; `text_stream`
makes text. Not here: threads (call an engine from one only) and HTTP.
Chapter: serving/continuous-batching.
"""

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.lm.decoder import Decoder
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.model_runner import ModelRunner, block_bytes
from course_pkg.serving.request import Request, SamplingParams, one_each, prompt_ids
from course_pkg.serving.sample import Chunk, Sample, end_tokens, report_prompt
from course_pkg.serving.scheduler import Scheduler
from course_pkg.serving.sequence import Sequence as Tokens
from course_pkg.serving.step import Scheduled
from course_pkg.serving.swap_space import SwapSpace

Prompt = str | list[int]


class Engine:
    """Continuous batching of a Llama-style model with a paged KV cache.

    model: a Decoder, or a transformers model that it can run. Give either blocks, of block_size
    tokens, or the memory_bytes for them. token_budget, max_sequences: as the Scheduler's. adapters:
    by name, the folder of a LoRA adapter, or a model that has it active. swap_blocks: blocks on the
    host for preempted sequences. Raises ValueError for sizes that make no sense, or a model whose
    keys depend on other sequences' lengths (dynamic and longrope RoPE).

    >>> from course_pkg.lm.load import load
    >>> engine = Engine(*load("tiny"), blocks=8)
    >>> [request] = engine.generate(["ab"], SamplingParams(max_tokens=3, temperature=0))
    >>> len(request.completions[0].tokens), request.completions[0].finish_reason
    (3, 'length')
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        blocks: int | None = None,
        memory_bytes: int | None = None,
        block_size: int = 16,
        token_budget: int = 512,
        max_sequences: int = 32,
        adapters: Mapping[str, str | os.PathLike | nn.Module] | None = None,
        swap_blocks: int = 0,
        prefix_cache: bool = True,
        watermark: float = 0.0,
    ):
        decoder = model if isinstance(model, Decoder) else Decoder.from_transformers(model)
        self.config, self.tokenizer = decoder.config, tokenizer
        if (rope := self.config.rope["rope_type"]) in ("dynamic", "longrope"):
            raise ValueError(
                f"the model's RoPE is {rope}, which depends on the longest sequence of a batch: "
                "use transformers' generate"
            )
        if (blocks is None) == (memory_bytes is None):
            raise ValueError(f"blocks {blocks}, memory_bytes {memory_bytes}: give one of the two")
        if blocks is None:
            blocks = memory_bytes // block_bytes(decoder, block_size) - 1  # one is for padding
        manager = BlockManager(blocks, block_size, prefix_cache=prefix_cache, watermark=watermark)
        swap = SwapSpace(manager, swap_blocks) if swap_blocks else None
        self.scheduler = Scheduler(manager, token_budget, max_sequences, swap_space=swap)
        self.adapters = tuple(adapters or ())
        self.runner = ModelRunner(decoder, blocks, block_size, swap_blocks, adapters)
        self.requests: dict[int, Request] = {}  # those that are not done
        self._samples: dict[str, Sample] = {}  # by the id of their sequence
        self._streams: dict[int, deque[Chunk]] = {}
        self._added = 0
        self.eos = end_tokens(model, tokenizer)

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
    ) -> list[Request]:
        """Complete all prompts, texts or lists of token ids; return their requests in order.

        params, adapter: one for all, or a list. If `add` or a step fails, none of them goes on.
        """
        if isinstance(prompts, str):
            raise TypeError("prompts is a string: give a list of prompts")
        given = zip(prompts, one_each(params, prompts), one_each(adapter, prompts), strict=True)
        requests: list[Request] = []
        try:
            for prompt, each, name in given:
                requests.append(self.add(prompt, each, adapter=name))
            while any(request.id in self.requests for request in requests):
                self.step()
                for error in filter(None, (request.error for request in requests)):
                    raise error
        finally:
            for request in requests:
                self.abort(request)
        return requests

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, adapter: str | None = None
    ) -> Iterator[Chunk]:
        """The chunks of one request as they come; closing the iterator aborts the request.

        Several streams can take turns: each step works for all of them. Raises what `add` raises
        when the first chunk is asked for.
        """
        request = self.add(prompt, params, adapter=adapter)
        chunks = self._streams[request.id] = deque()
        try:
            while chunks or request.id in self.requests:
                if not chunks:
                    self.step()
                yield from (chunks.popleft() for _ in range(len(chunks)))
            if request.error:
                raise request.error
        finally:
            self.abort(request)
            del self._streams[request.id]

    def add(
        self, prompt: Prompt, params: SamplingParams | None = None, *, adapter: str | None = None
    ) -> Request:
        """Queue a request, which later steps fill.

        prompt: a text, or a list of token ids. Raises ValueError if it is empty or too long, if a
        token is unknown, or if there is no such adapter.
        """
        params = params or SamplingParams()
        if adapter is not None and adapter not in self.adapters:
            raise ValueError(f"there is no adapter {adapter!r}; there are {list(self.adapters)}")
        ids = prompt_ids(prompt, self.tokenizer, self.config.vocab_size)
        params.check_biases(self.config.vocab_size)
        limit, manager = self.config.max_positions, self.scheduler.blocks
        slots = len(manager.pool.blocks) * manager.block_size  # the last token needs none
        most = params.max_tokens or max(1, min(limit, slots + 1) - len(ids))
        if len(ids) + most > limit:
            raise ValueError(
                f"the prompt has {len(ids)} tokens, and max_tokens is {params.max_tokens}: the "
                f"model takes {limit} together; shorten the prompt or ask for fewer"
            )
        self._added += 1
        request = Request(self._added, ids, params, adapter)
        sequence = Tokens(
            f"{request.id}.0",
            ids,
            most,
            frozenset() if params.ignore_eos else self.eos,
            params.priority,
            adapter or "",
            params.prompt_logprobs is not None,
            params.cache_salt,
        )
        self.scheduler.add(sequence)
        self.requests[request.id] = request
        self._sample(request, 0).sequence = sequence
        return request

    def abort(self, request: Request, reason: str = "abort") -> bool:
        """End all samples of a request and free its blocks; false if it is done already."""
        for completion in request.completions:
            self.scheduler.abort(id := f"{request.id}.{completion.index}")
            self._samples.pop(id, None)
            completion.finish_reason = completion.finish_reason or reason
        return self.requests.pop(request.id, None) is not None

    def step(self) -> list[Chunk]:
        """Compute one step for all requests; the tokens that it gave, none if there is no work.

        A request whose next token can't be chosen (NaN) ends alone, with reason "error" and its
        `error`. If the step fails, all that ran end so, and the error is raised.
        """
        step = self.scheduler.schedule()
        try:
            rows, logits = self.runner.run(step, self.scheduler.blocks)
            drawn = self._draw(rows, logits)
            sampled = {e.sequence.id for e in step.scheduled if e.samples} & drawn.keys()
            self.scheduler.update(step, {id: drawn[id][0] for id in sampled})
        except BaseException:
            for sequence in self.scheduler.fail():
                if sequence.id in self._samples:
                    self.abort(self._samples[sequence.id].request, "error")
            raise
        return [self._report(self._samples[id], *drawn[id]) for id in drawn if id in self._samples]

    def _draw(
        self, rows: list[tuple[Scheduled, slice]], logits: Tensor
    ) -> dict[str, tuple[int, Tensor]]:
        """The next token of each sequence that samples, and its logits. Forks a request's first."""
        best, drawn = logits.argmax(-1).tolist(), {}
        for (sequence, start, _, samples), span in rows:
            if (parent := self._samples.get(sequence.id)) is None:
                continue  # another sample of its request has failed
            request, group = parent.request, [parent]
            row = span.stop - 1
            try:
                if sequence.prompt_logprobs:
                    report_prompt(request, start, logits[span])
                if not samples:
                    continue
                if len(sequence.tokens) == len(request.prompt):
                    group += [self._sample(request, index) for index in range(1, request.params.n)]
                tokens = [each.choose(logits[row], best[row], sequence.tokens) for each in group]
            except ValueError as error:
                request.error = error
                self.abort(request, "error")
                continue
            for sample, token in zip(group, tokens, strict=True):
                if sample is not parent:
                    sample.sequence = self.scheduler.fork(sequence, sample.id, token)
                drawn[sample.id] = token, logits[row]
        return drawn

    def _report(self, sample: Sample, token: int, logits: Tensor) -> Chunk:
        chunk, request = sample.report(token, logits), sample.request
        if sample.completion.index == 0:
            request.hit_tokens = sample.sequence.hit_tokens
        if chunk.completion.finish_reason:
            self.scheduler.abort(sample.id)  # a stop string; others have ended there too
            del self._samples[sample.id]
            if request.done:
                del self.requests[request.id]
        if request.id in self._streams:
            self._streams[request.id].append(chunk)
        return chunk

    def _sample(self, request: Request, index: int) -> Sample:
        sample = Sample(request, index, self.tokenizer)
        self._samples[sample.id] = sample
        return sample
