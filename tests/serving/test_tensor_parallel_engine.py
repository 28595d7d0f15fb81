"""An engine on each of several ranks writes what the engine of one process writes."""

import re
from types import SimpleNamespace

import pytest
import torch

from course_pkg.acceleration.parallel.collectives import Group
from course_pkg.acceleration.parallel.launch import PRELOAD, launch
from course_pkg.acceleration.parallel.parallel_decoder import tensor_parallel
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.decoder_config import DecoderConfig
from course_pkg.lm.load import load
from course_pkg.lm.tiny import tiny_tokenizer
from course_pkg.serving.constrained.guide import regex_guide
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams
from tests.tables import each_row

PRELOAD.append("course_pkg.serving.engine")  # once for all processes, instead of by each
PROMPTS = ["The cat sat on the mat", "a", "Once upon a time"]
PARAMS = [
    SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, logprobs=2),
    SamplingParams(max_tokens=9, seed=1, n=2, top_p=0.9, ignore_eos=True),
    SamplingParams(max_tokens=7, seed=2, ignore_eos=True),
]


def _decoder():
    """As SmolLM2, 9 heads and 3 key-value heads, and 259 tokens, which 3 doesn't divide."""
    sizes = {"vocab_size": 259, "hidden_size": 36, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 128}
    settings = {"model_type": "llama", "tie_word_embeddings": True} | sizes | heads
    config = DecoderConfig.from_dict(settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        decoder = Decoder(config)
        for parameter in decoder.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return decoder.eval()


def _complete(decoder):
    """With so few blocks that sequences are preempted."""
    engine = Engine(decoder, tiny_tokenizer(), blocks=6, block_size=8, token_budget=32)
    requests = engine.generate(PROMPTS, PARAMS)
    unseeded = engine.generate(["b"], SamplingParams(max_tokens=9, ignore_eos=True))
    tokens = [completion.tokens for request in requests for completion in request.completions]
    logprobs = [entry.logprob for entry in requests[0].completions[0].logprobs]
    # A guide, without a seed: on each rank its own.
    guided = SamplingParams(guide=regex_guide("[a-f]{4}", engine.vocabulary))
    unseeded += engine.generate(["b"], guided)
    drawn = [request.completions[0].tokens for request in unseeded]
    return tokens, logprobs, drawn, engine.runner.caches[0][0].shape[1]


def _on_rank(group):
    return _complete(tensor_parallel(_decoder(), group))


def test_three_ranks_write_what_one_process_writes():
    tokens, logprobs, _, kv_heads = _complete(_decoder())
    results = launch(_on_rank, 3)
    for rank_tokens, rank_logprobs, _, rank_kv_heads in results:
        assert rank_tokens == tokens
        assert rank_logprobs == pytest.approx(logprobs, abs=1e-4)
        assert rank_kv_heads == kv_heads / 3
    first, *others = [unseeded for _, _, unseeded, _ in results]
    assert others == [first, first], "without a seed, all ranks draw the same"
    assert re.fullmatch("[a-f]{4}", tiny_tokenizer().decode(first[1], skip_special_tokens=True))


@each_row("options", [{"quantize": "int8"}, {"adapters": {"poet": "folder"}}])
def test_quantized_weights_and_adapters_are_refused(options):
    decoder = tensor_parallel(_decoder(), SimpleNamespace(rank=0, size=3))  # enough of a Group
    with pytest.raises(
        ValueError, match="a tensor-parallel decoder can't be quantized or get adap"
    ):
        Engine(decoder, tiny_tokenizer(), blocks=4, **options)


def _smollm2(group):
    model, tokenizer = load("smollm2-135m")
    decoder = tensor_parallel(Decoder.from_transformers(model), Group(algorithm="torch"))
    del model
    return _written(decoder, tokenizer)


def _written(decoder, tokenizer):
    engine = Engine(decoder, tokenizer, blocks=8)
    params = SamplingParams(max_tokens=8, temperature=0)
    requests = engine.generate(["The capital of France is", "2 + 2 ="], params)
    return [request.completions[0].tokens for request in requests]


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.exhaustive
def test_three_ranks_write_with_smollm2_what_one_process_writes(smollm2):
    model, tokenizer = smollm2
    alone = _written(Decoder.from_transformers(model), tokenizer)
    assert launch(_smollm2, 3, timeout=300) == [alone] * 3
