"""The engine with quantized weights: its own formats, and models that are quantized already."""

import copy

import pytest
import torch

from course_pkg.acceleration.quantization.blockwise import quantize
from course_pkg.acceleration.quantization.grouped import Grid
from course_pkg.acceleration.quantization.int8 import Activations, int8_weight
from course_pkg.acceleration.quantization.layerwise import (
    EachWeight,
    RoundToNearest,
    quantize_layers,
)
from course_pkg.acceleration.quantization.llm_int8 import llm_int8_weight
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.adapters.injection import adapter_layers, inject
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.methods import save
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.load import load
from course_pkg.serving.engine import Engine
from course_pkg.serving.sampling import SamplingParams
from tests.tables import each_row

GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
PROMPTS = ["ab", "the sea is", "ab cd"]
METHODS = {
    "4 bits": RoundToNearest(Grid(4, 32)),
    "int8": EachWeight(int8_weight),
    "w8a8": EachWeight(lambda weight: int8_weight(weight, Activations())),
    "llm.int8": EachWeight(llm_int8_weight),
    "nf4": EachWeight(quantize),
}


def tokens(engine, **options):
    requests = engine.generate(PROMPTS, GREEDY, **options)
    return [request.completions[0].tokens for request in requests]


def alone(model, tokenizer, prompt):
    ids = torch.tensor([tokenizer(prompt).input_ids])
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(ids, **options)[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_is_quantized_generates_what_transformers_does(method):
    model, tokenizer = load("tiny", seed=3)
    quantize_layers(model, METHODS[method])
    engine = Engine(model, tokenizer, blocks=16)
    assert tokens(engine) == [alone(model, tokenizer, prompt) for prompt in PROMPTS]


@each_row("method", METHODS)
def test_the_engine_shares_the_memory_of_a_quantized_model(method):
    model, tokenizer = load("tiny")
    quantize_layers(model, METHODS[method])
    runner = Engine(model, tokenizer, blocks=4).runner
    own = {t.data_ptr() for t in (*model.parameters(), *model.buffers())}
    for module in runner.decoder.modules():
        if isinstance(module, QuantizedLinear):
            assert {t.data_ptr() for t in module.quantized.tensors().values()} <= own


@each_row("quantize", ["int8", "int4"])
def test_the_engine_quantizes(quantize):
    engine = Engine(*load("tiny"), blocks=16, quantize=quantize)
    assert isinstance(engine.runner.decoder.layers[0].mlp.gate_up_proj, QuantizedLinear)
    assert engine.runner.caches[0][0].dtype == torch.bfloat16
    assert [len(row) for row in tokens(engine)] == [6, 6, 6]


@each_row("quantize", ["int8", "int4"])
def test_an_adapter_acts_on_quantized_weights(quantize, tmp_path):
    model, tokenizer = load("tiny")
    trained = copy.deepcopy(model)
    inject(trained, LoRAConfig(rank=2, target_modules=("q_proj", "down_proj")))
    for layer in adapter_layers(trained).values():
        torch.nn.init.normal_(layer.lora_B["default"], generator=torch.Generator().manual_seed(0))
    save(trained, str(tmp_path))
    engine = Engine(model, tokenizer, blocks=16, quantize=quantize, adapters={"poet": tmp_path})
    plain = Engine(model, tokenizer, blocks=16, quantize=quantize)
    assert hasattr(engine.runner.decoder.layers[0].mlp, "up_proj")  # an adapter may need it
    assert tokens(engine) == tokens(plain)
    assert tokens(engine, adapter="poet") != tokens(plain)


def test_an_unknown_format_and_an_adapter_around_quantized_weights_are_refused():
    with pytest.raises(ValueError, match="weights must be one of int8, int4, got 'int2'"):
        Engine(*load("tiny"), blocks=4, quantize="int2")
    model = load("tiny").model
    quantize_layers(model, METHODS["nf4"])
    inject(model, LoRAConfig(rank=2))
    with pytest.raises(RuntimeError, match="unmerged adapter"):
        Decoder.from_transformers(model)
