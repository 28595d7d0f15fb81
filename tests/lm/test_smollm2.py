"""The converted SmolLM2: the same values as in the GGUF, and a tokenizer with the fixes."""

import math

import pytest
import torch

from course_pkg.lm import smollm2 as source
from course_pkg.lm.cache import MANIFEST
from course_pkg.lm.load import load

pytestmark = pytest.mark.model
TEXT = (
    "A lighthouse keeper counts the seconds between two flashes, because each light on the "
    "coast has a rhythm of its own, and a captain who knows the rhythm knows where he is."
)


@pytest.fixture(scope="module")
def unconverted():
    """Model and tokenizer as transformers reads them from the GGUF, without the fixes."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = source.find_gguf()
    with source.quiet():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
    return model.eval(), tokenizer


@torch.no_grad()
def perplexity(model, ids):
    return math.exp(model(input_ids=ids, labels=ids).loss.item())


@pytest.mark.slow
@pytest.mark.exhaustive
def test_perplexity_and_every_weight_equal_those_of_the_gguf(smollm2, unconverted):
    model, tokenizer = smollm2
    raw_model, raw_tokenizer = unconverted
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    assert ids.tolist() == [raw_tokenizer(TEXT).input_ids]
    assert perplexity(model, ids) == perplexity(raw_model, ids)
    raw = raw_model.state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, raw.pop(name)), name
    assert not raw
    assert raw_tokenizer.tokenize("a  5") == ["a", "Ġ", "Ġ", "5"]  # the conversion fixes this


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.minutes
def test_another_conversion_writes_the_same_bytes(tmp_path, monkeypatch):
    expected = (source.cached_folder() / MANIFEST).read_text()
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    load("smollm2-135m")
    assert (tmp_path / source.NAME / MANIFEST).read_text() == expected


def test_it_knows_the_capital_of_france(smollm2):
    model, tokenizer = smollm2
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    out = model.generate(**inputs, max_new_tokens=2, do_sample=False)
    assert tokenizer.decode(out[0]) == "The capital of France is Paris."


def test_the_model_is_ready_for_use_and_its_pad_token_is_not_the_end_token(smollm2):
    model = smollm2.model
    assert not model.training and model.dtype == torch.float32
    assert getattr(model, "hf_quantizer", None) is None
    assert not hasattr(model.config, "quantization_config")
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    model, tokenizer = smollm2
    names = tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token
    assert names == ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    end_of_turn = tokenizer.eos_token_id
    end_of_document = tokenizer.pad_token_id
    assert model.generation_config.eos_token_id == [end_of_turn, end_of_document]
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer("text").input_ids[0] != tokenizer.bos_token_id  # none is added at the start


def test_digits_are_split_as_in_training_and_decoding_restores_text(smollm2):
    """The tokenizer in the GGUF gives two tokens for the two spaces before a digit."""
    tokens = smollm2.tokenizer.tokenize("a  5 12")
    assert tokens == ["a", "ĠĠ", "5", "Ġ", "1", "2"]
    tokenizer = smollm2.tokenizer
    others = "我喜欢大语言模型。", "naïve café — “quotes” 🎉", "def f(x):\n\treturn 3.14"
    for text in (TEXT, *others):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    lost = [code for code in range(128) if not tokenizer(chr(code)).input_ids]
    assert lost == [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D]
