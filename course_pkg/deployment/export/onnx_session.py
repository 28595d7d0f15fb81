"""Run an exported model with ONNX Runtime: logits with a KV cache, and greedy generation.

It needs numpy, onnxruntime and tokenizers, but neither torch nor transformers: this is what a small
device has to install. The cache stays in the runtime's memory from call to call; inside a call, the
operator copies it once, because its output is longer by the new tokens.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime import OrtValue
from tokenizers import Tokenizer

from course_pkg.common.arguments import require_integer, require_list
from course_pkg.lm.model_errors import ModelError

ERRORS_ONLY = 3  # severity of what the runtime may print


@dataclass(frozen=True)
class OnnxCache:
    """The keys and values of earlier tokens.

    Attributes:
        mask: (batch, past), 1 at real tokens, 0 at padding.
        tensors: one key and one value per layer, (batch, kv_heads, past, head_dim) each, in memory
            of the runtime.
    """

    mask: np.ndarray
    tensors: list[OrtValue]


class OnnxDecoder:
    """A model in a folder that `export_onnx` wrote.

    Args:
        folder: with the model and tokenizer.json.
        file: "model.onnx", or one of `quantize_onnx`.
        threads: how many compute one operator; None lets the runtime take one per core.
    """

    def __init__(
        self, folder: str | os.PathLike, file: str = "model.onnx", threads: int | None = None
    ):
        folder = Path(folder).expanduser()
        for name in (file, "tokenizer.json"):
            if not (folder / name).is_file():
                raise ModelError(f"{folder} has no {name}: write the folder with export_onnx")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = ERRORS_ONLY
        if threads is not None:
            options.intra_op_num_threads = require_integer(threads, "threads")
        try:
            self.session = onnxruntime.InferenceSession(
                folder / file, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime's errors have no common class
            first = str(error).strip().splitlines()[0]
            raise ModelError(
                f"{folder / file} cannot be read ({first}): export it again"
            ) from error
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.eos = _end_tokens(folder / "generation_config.json")
        self._past = [i for i in self.session.get_inputs() if i.name.startswith("past_key_values")]
        outputs = {output.name: output.shape for output in self.session.get_outputs()}
        if "logits" not in outputs or len(outputs) != len(self._past) + 1:
            raise ModelError(
                f"{folder / file} is no decoder with a cache: write it with export_onnx"
            )
        self.vocab_size = outputs["logits"][-1]
        self._outputs = list(outputs)

    def empty_cache(self, batch: int) -> OnnxCache:
        tensors = []
        for entry in self._past:
            _, kv_heads, _, head_dim = entry.shape
            empty = np.zeros((batch, kv_heads, 0, head_dim), np.float32)
            tensors.append(OrtValue.ortvalue_from_numpy(empty))
        return OnnxCache(np.zeros((batch, 0), np.int64), tensors)

    def forward(
        self,
        ids: np.ndarray,
        mask: np.ndarray | None = None,
        cache: OnnxCache | None = None,
        keep: int = 0,
    ) -> tuple[np.ndarray, OnnxCache]:
        """The logits of the next tokens, (batch, tokens or keep, vocab), and the longer cache.

        Args:
            ids: (batch, tokens), after those in the cache, which stays as it is.
            mask: (batch, tokens), 1 at real tokens, 0 at padding, which may only be on the left;
                None means no padding. Logits at padding mean nothing.
            keep: only the logits of so many last tokens; 0 means all.
        """
        ids = np.asarray(ids)
        mask = np.ones_like(ids) if mask is None else np.asarray(mask)
        if ids.ndim != 2 or ids.size == 0 or ids.shape != mask.shape:
            shapes = f"ids {ids.shape} and mask {mask.shape}"
            raise ValueError(f"{shapes}: expected one shape (batch, tokens) with a token at least")
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise ValueError(
                f"ids are {ids.min()} to {ids.max()}, expected 0 to {self.vocab_size - 1}"
            )
        cache = cache or self.empty_cache(len(ids))
        if len(cache.mask) != len(ids):
            raise ValueError(f"the cache has {len(cache.mask)} sequences, but ids has {len(ids)}")
        mask = np.concatenate([cache.mask, mask], axis=1)  # (batch, past + tokens)
        positions = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -ids.shape[1] :]  # (batch, tokens)
        call = self.session.io_binding()
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        inputs["num_logits_to_keep"] = np.array(keep)
        for name, array in inputs.items():
            call.bind_cpu_input(name, np.asarray(array, np.int64, order="C"))
        for entry, tensor in zip(self._past, cache.tensors, strict=True):
            call.bind_ortvalue_input(entry.name, tensor)  # the runtime's own memory, not a copy
        for name in self._outputs:
            call.bind_output(name, "cpu")
        self.session.run_with_iobinding(call)
        logits, *tensors = call.get_outputs()
        return logits.numpy(), OnnxCache(mask, tensors)

    def generate(
        self, prompts: Sequence[str | Sequence[int]], max_new_tokens: int = 32
    ) -> list[list[int]]:
        """The most probable next tokens of each prompt, up to an end token, which is left out.

        Args:
            prompts: texts or lists of token ids; shorter ones are padded on the left.
        """
        require_list(prompts, "prompts", "put one prompt into [ ]")
        require_integer(max_new_tokens, "max_new_tokens")
        texts = [self.tokenizer.encode(p).ids if isinstance(p, str) else list(p) for p in prompts]
        if not texts or not all(texts):
            raise ValueError("there is no prompt, or an empty one: give at least one token each")
        width = max(map(len, texts))
        ids = np.array([[0] * (width - len(text)) + text for text in texts])  # (batch, width)
        mask = np.array([[0] * (width - len(text)) + [1] * len(text) for text in texts])
        logits, cache = self.forward(ids, mask, keep=1)
        new = logits[:, -1].argmax(-1)[:, None]  # (batch, 1)
        chosen = new
        for _ in range(max_new_tokens - 1):
            if np.isin(chosen, list(self.eos)).any(axis=1).all():
                break
            logits, cache = self.forward(new, cache=cache, keep=1)
            new = logits[:, -1].argmax(-1)[:, None]
            chosen = np.concatenate([chosen, new], axis=1)  # (batch, new tokens)
        return [list(takewhile(lambda t: t not in self.eos, row.tolist())) for row in chosen]


def _end_tokens(path: Path) -> set[int]:
    """The tokens that end a text, by generation_config.json; none if there is no such file."""
    if not path.is_file():
        return set()
    ends = json.loads(path.read_text("utf-8")).get("eos_token_id")
    if ends is None:
        return set()
    return set(ends) if isinstance(ends, list) else {ends}
