"""The inference engine: requests in, text out, many at a time.

`step` schedules (`scheduler`, `block_manager`: no tensors), computes (`model_runner`), chooses
(`sampling`) and makes text (`text_stream`). Not here: threads (call an engine from one only) and
HTTP.
"""

import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import count

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.acceleration.parallel.parallel_decoder import TensorParallelDecoder
from course_pkg.acceleration.quantization.quantized_decoder import quantize_decoder
from course_pkg.adapters.own_tokenizer import own_templates
from course_pkg.lm.answer_end import answer_end
from course_pkg.lm.decoder import Decoder
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.constrained.vocabulary import Vocabulary, vocabulary_of
from course_pkg.serving.model_runner import ModelRunner, block_bytes
from course_pkg.serving.request import Chunk, Completion, Request, prompt_ids
from course_pkg.serving.sampling import SamplingParams
from course_pkg.serving.scheduler import Scheduler, Step
from course_pkg.serving.sequence import Sequence
from course_pkg.serving.text_stream import end_tokens

Prompt = str | list[int]


class Engine:
    """Continuous batching of a Llama-style model with a paged KV cache.

    Each rank of a `tensor_parallel` decoder has an engine. All engines must get the same calls in
    the same order; then all ranks get the same tokens.

    Args:
        model: a Decoder, or a transformers model that it can run.
        blocks, memory_bytes: the size of the KV cache, in blocks of block_size tokens or in bytes.
        token_budget, max_sequences: as the Scheduler's.
        adapters: by name, the folder of a LoRA adapter, or a model that has it active.
        swap_blocks: blocks on the host for preempted sequences.
        quantize: "int8" or "int4", the format of the weights; the rest has 16 bits then.

    Attributes:
        max_model_len: tokens of a prompt and its completion together.

    Example:

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
        quantize: str | None = None,
    ):
        decoder = model if isinstance(model, Decoder) else Decoder.from_transformers(model)
        self._is_parallel = isinstance(decoder, TensorParallelDecoder)
        if self._is_parallel and (quantize is not None or adapters):
            raise ValueError(
                "a tensor-parallel decoder can't be quantized or get adapters: merge the adapter "
                "before tensor_parallel, or use one process"
            )
        if quantize is not None:
            decoder = quantize_decoder(decoder, quantize, fused=not adapters)
        self.config = decoder.config
        self.tokenizer = tokenizer
        if (blocks is None) == (memory_bytes is None):
            raise ValueError(f"blocks {blocks}, memory_bytes {memory_bytes}: give one of the two")
        if blocks is None:
            blocks = memory_bytes // block_bytes(decoder, block_size) - 1  # one is for padding
        manager = BlockManager(blocks, block_size, prefix_cache=prefix_cache)
        self.scheduler = Scheduler(manager, token_budget, max_sequences, swap_blocks=swap_blocks)
        # The last token needs no slot in the cache.
        self.max_model_len = min(self.config.max_positions, blocks * block_size + 1)
        self.adapters = tuple(adapters or ())
        self.runner = ModelRunner(decoder, blocks, block_size, swap_blocks, adapters)
        # An adapter of a folder may have been trained with a chat template of its own.
        folders = {
            name: source
            for name, source in (adapters or {}).items()
            if not isinstance(source, nn.Module)
        }
        self.chat_templates = own_templates(folders, tokenizer, self.config.vocab_size)
        ends = (answer_end(tokenizer, template) for template in self.chat_templates.values())
        self.eos = end_tokens(model, tokenizer).union(ends) - {None}
        self.requests: dict[int, Request] = {}  # those that are not done
        self._completions: dict[int, Completion] = {}  # those that grow, by their sequence's id
        self._request_ids = count(1)
        self._sequence_ids = count(1)

    def use_template(self, template: str) -> None:
        """Write chats with this template, for the model and all adapters. Before any request."""
        self.tokenizer.chat_template = template
        self.chat_templates = {}
        self.eos = self.eos.union([answer_end(self.tokenizer)]) - {None}

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What guides of requests are compiled with: the tokens' bytes, and the end tokens."""
        return vocabulary_of(self.tokenizer, self.eos)

    def generate(
        self,
        prompts: list[Prompt],
        params: SamplingParams | list[SamplingParams] | None = None,
        *,
        adapter: str | list[str | None] | None = None,
    ) -> list[Request]:
        """Complete all prompts, texts or lists of token ids; return their requests in order.

        Args:
            params, adapter: one for all, or a list. If `add` or a step fails, none of them goes on.
        """
        if isinstance(prompts, str):
            raise TypeError("prompts is a string: give a list of prompts")
        params = _one_each(params, prompts)
        adapters = _one_each(adapter, prompts)
        requests: list[Request] = []
        try:
            for prompt, own_params, name in zip(prompts, params, adapters, strict=True):
                requests.append(self.add(prompt, own_params, adapter=name))
            while any(request.id in self.requests for request in requests):
                self.step()
                failed = [request for request in requests if request.error]
                if failed:
                    raise failed[0].error
        finally:
            for request in requests:
                self.abort(request)
        return requests

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, adapter: str | None = None
    ) -> Iterator[Chunk]:
        """The chunks of one request as they come; closing the iterator aborts the request.

        Several streams can take turns: each step works for all of them.
        """
        request = self.add(prompt, params, adapter=adapter)
        chunks = request.chunks = deque()
        try:
            while chunks or request.id in self.requests:
                if chunks:
                    yield chunks.popleft()
                else:
                    self.step()
            if request.error:
                raise request.error
        finally:
            self.abort(request)

    def add(
        self, prompt: Prompt, params: SamplingParams | None = None, *, adapter: str | None = None
    ) -> Request:
        """Queue a request, which later steps fill. prompt: a text, or a list of token ids.

        Raises:
            ValueError: the prompt, a parameter, the adapter or the guide does not fit the model.
        """
        params = params or SamplingParams()
        if adapter is not None and adapter not in self.adapters:
            raise ValueError(f"there is no adapter {adapter!r}; there are {list(self.adapters)}")
        ids = prompt_ids(prompt, self.tokenizer, self.config.vocab_size)
        params.check_biases(self.config.vocab_size)
        if params.guide is not None:
            params.check_guide(self.vocabulary)
        max_new_tokens = params.max_tokens or max(1, self.max_model_len - len(ids))
        if len(ids) + max_new_tokens > self.config.max_positions:
            raise ValueError(
                f"the prompt has {len(ids)} tokens, and {max_new_tokens} may follow: the "
                f"model takes {self.config.max_positions} together; shorten it or lower max_tokens"
            )
        if self._is_parallel and params.seed is None and params.temperature > 0:
            params = replace(params, seed=self.runner.decoder.shared_seed())
        request = Request(next(self._request_ids), ids, params, adapter)
        request.completions = [Completion(request, i, self.tokenizer) for i in range(params.n)]
        sequence = request.first_sequence(next(self._sequence_ids), max_new_tokens, self.eos)
        self.scheduler.add(sequence)
        self.requests[request.id] = request
        self._start(request.completions[0], sequence)
        return request

    def abort(self, request: Request, reason: str = "abort") -> bool:
        """End all samples of a request and free its blocks; false if it is done already."""
        for completion in request.completions:
            if completion.sequence is not None:
                self.scheduler.abort(completion.sequence.id)
                self._completions.pop(completion.sequence.id, None)
            completion.finish_reason = completion.finish_reason or reason
        return self.requests.pop(request.id, None) is not None

    def step(self) -> list[Chunk]:
        """Compute one step for all requests; returns the tokens that it gave, if any.

        A request whose next token can't be chosen (NaN) ends alone, with reason "error" and its
        `error`. If the step fails, all that ran end so, and the error is raised.
        """
        step = self.scheduler.schedule()
        try:
            rows, logits = self.runner.run(step, self.scheduler.block_manager)
            chosen = self._choose(step, rows, logits)
            tokens = {completion.sequence.id: token for completion, (token, _) in chosen.items()}
            sampled = {s.id: tokens[s.id] for s in step.sampling if s.id in tokens}
            self.scheduler.update(step, sampled)
        except BaseException:
            for sequence in self.scheduler.fail():
                if sequence.id in self._completions:
                    self.abort(self._completions[sequence.id].request, "error")
            raise
        return [
            self._report(completion, token, row)
            for completion, (token, row) in chosen.items()
            if completion.finish_reason is None  # otherwise another sample has failed
        ]

    def _choose(
        self, step: Step, rows: dict[Sequence, slice], logits: Tensor
    ) -> dict[Completion, tuple[int, Tensor]]:
        """The next tokens, and the logits that they were chosen from. Forks a request's first."""
        best = logits.float().argmax(-1).tolist()  # on a CPU, slower in 16 bits
        sampling = set(step.sampling)
        chosen = {}
        for sequence, span in rows.items():
            completion = self._completions.get(sequence.id)
            if completion is None:
                continue  # another sample of its request has failed
            request = completion.request
            try:
                if sequence.prompt_logprobs:
                    request.score_prompt(step.scheduled[sequence].start, logits[span])
                if sequence not in sampling:
                    continue
                row = logits[span.stop - 1]
                tokens = completion.next_tokens(row, best[span.stop - 1])
            except ValueError as error:
                request.error = error
                self.abort(request, "error")
                continue
            for sample, token in tokens.items():
                if sample is not completion:
                    fork = self.scheduler.fork(sequence, next(self._sequence_ids), token)
                    self._start(sample, fork)
                chosen[sample] = token, row
        return chosen

    def _report(self, completion: Completion, token: int, logits: Tensor) -> Chunk:
        chunk = completion.add(token, logits)
        request = completion.request
        if completion.finish_reason:
            # At a stop string, the scheduler doesn't know; otherwise it has ended there already.
            self.scheduler.abort(completion.sequence.id)
            del self._completions[completion.sequence.id]
            if request.done:
                del self.requests[request.id]
        return chunk

    def _start(self, completion: Completion, sequence: Sequence) -> None:
        completion.sequence = sequence
        self._completions[sequence.id] = completion


def _one_each(values: object, prompts: list[Prompt]) -> list:
    """A list with one value for each prompt, from such a list or from one for all."""
    listed = list(values) if isinstance(values, list | tuple) else [values] * len(prompts)
    if len(listed) != len(prompts):
        raise ValueError(
            f"{len(prompts)} prompts, and a list of {len(listed)} params or adapters: "
            "give one for all prompts, or one for each"
        )
    return listed
