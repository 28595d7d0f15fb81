"""Models as GGUF files: transformers' loader and ours read back the same model and tokenizer."""

import json

import gguf
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from course_pkg.acceleration.quantization.gguf_blocks import write_gguf
from course_pkg.adapters import LoRAConfig, inject
from course_pkg.deployment.export.gguf_file import read_gguf_file
from course_pkg.deployment.export.gguf_model import interleave, read_weights, write_gguf_model
from course_pkg.deployment.export.gguf_tokenizer import tokenizer_metadata
from course_pkg.lm import smollm2 as smollm2_module
from course_pkg.lm.model_errors import ModelError
from course_pkg.lm.tiny import CHAT_TEMPLATE, byte_symbols

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "a  5 12345 007",
    "naïve café 😀\u200d e\u0301 \u00a0x",
    "\tdef f(x):\n    return x**2  # 1,000\r\n\r\n",
    "<|im_start|>user\nHi<|im_end|>\n",
    "   ",
    "",
    "日本語 中文 العربية",
    "it's we'll I'M don't",
    "a" * 50,
]


def trained_tokenizer(digits=True, vocab=400):
    """Byte-level BPE as SmolLM2's (or GPT-2's), trained on a few lines."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rule = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = rule if digits else words
    tokenizer.decoder = decoders.ByteLevel()
    options = {
        "special_tokens": SPECIAL,
        "initial_alphabet": byte_symbols(),
        "show_progress": False,
    }
    trainer = trainers.BpeTrainer(vocab_size=vocab, **options)
    lines = ["the cat sat on the mat 12 123 don't it's", "def f(x):\n  return x", "naïve café 中文"]
    tokenizer.train_from_iterator(lines * 5, trainer)
    pad, bos, eos = SPECIAL
    options = {"pad_token": pad, "unk_token": pad, "bos_token": bos, "eos_token": eos}
    options |= {"tokenizer_object": tokenizer, "chat_template": CHAT_TEMPLATE}
    return PreTrainedTokenizerFast(**options)


def random_llama(rows, seed=0, **settings):
    """A random Llama; its embeddings are tied unless the settings say otherwise."""
    sizes = {"vocab_size": rows, "hidden_size": 64, "intermediate_size": 96, "bos_token_id": 1}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"max_position_embeddings": 512, "tie_word_embeddings": True, "eos_token_id": 2}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**sizes | settings)).eval()
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith("proj.weight"):
                torch.nn.init.normal_(parameter, 0.5 if "norm" in name else 0, 0.2)
    return model


@pytest.fixture(scope="module")
def tokenizer():
    return trained_tokenizer()


def restored(model, path):
    """A model of the same config with the file's weights, by our reader."""
    other = LlamaForCausalLM(model.config).eval()
    missing, unexpected = other.load_state_dict(read_weights(path), strict=False)
    assert unexpected == [] and set(missing) <= {"lm_head.weight"}
    return other


def logits(model):
    ids = torch.tensor([[1, 5, 77, 130, 259, 3, 2]])
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("type", ["F32", "F16", "Q8_0", "Q4_0"])
def test_transformers_and_our_reader_read_back_the_model_in_each_type(type, tokenizer, tmp_path):
    model = random_llama(len(tokenizer))
    path = tmp_path / "a.gguf"
    write_gguf_model(model, tokenizer, path, type)
    ours = restored(model, path)
    with smollm2_module.quiet():
        theirs = AutoModelForCausalLM.from_pretrained(
            tmp_path, gguf_file=path.name, dtype=torch.float32
        )
    assert torch.equal(logits(ours), logits(theirs.eval()))
    for name, weight in model.state_dict().items():
        expected = weight
        if weight.dim() == 2 and type != "F32":
            expected = weight.half().float()
            if type != "F16":
                large = type == "Q4_0" and name in ("model.embed_tokens.weight", "lm_head.weight")
                expected = write_gguf(weight, "Q8_0" if large else type).dequantize()
        assert torch.equal(ours.state_dict()[name], expected), name
    if type == "F32":
        assert torch.equal(logits(ours), logits(model))


def test_rope_turns_the_same_pairs_in_both_orders():
    """Neighbors in the new order are the pair (i, i + d/2) in the old one, head by head."""
    rows = torch.arange(24)  # three heads of 8
    pairs = interleave(rows, heads=3).view(-1, 2)
    assert torch.equal(pairs[:, 1] - pairs[:, 0], torch.full((12,), 4))
    assert torch.equal(pairs[:, 0] // 8, torch.arange(3).repeat_interleave(4))


@pytest.mark.parametrize("digits", [True, False])
def test_transformers_reads_back_a_tokenizer_with_the_same_ids(digits, tmp_path):
    """Digits are split before words only if the file says smollm, which transformers ignores."""
    tokenizer = trained_tokenizer(digits)
    write_gguf_model(random_llama(len(tokenizer)), tokenizer, tmp_path / "a.gguf", "F16")
    with smollm2_module.quiet():
        theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="a.gguf")
    texts = [text for text in TEXTS if not digits or not any(map(str.isdigit, text))]
    assert [theirs(text).input_ids for text in texts] == [
        tokenizer(text).input_ids for text in texts
    ]
    assert theirs.chat_template == tokenizer.chat_template
    assert (theirs.bos_token_id, theirs.eos_token_id) == (1, 2)
    pre = read_gguf_file(tmp_path / "a.gguf").metadata["tokenizer.ggml.pre"].value
    assert pre == ("smollm" if digits else "gpt-2")


@pytest.mark.model
def test_the_keys_of_smollm2_are_those_of_its_published_file(smollm2):
    """All but the padding, which the course has corrected, and two keys more."""
    published = read_gguf_file(smollm2_module.find_gguf()).metadata
    mine = tokenizer_metadata(smollm2.tokenizer, 49152)
    assert mine.pop("tokenizer.ggml.padding_token_id").value == 0
    assert mine.pop("tokenizer.ggml.add_eos_token").value is False
    theirs = {key: value for key, value in published.items() if key.startswith("tokenizer.")}
    assert theirs.pop("tokenizer.ggml.padding_token_id").value == 2
    assert mine == theirs


def test_untied_embeddings_biases_and_wide_heads_come_back(tokenizer, tmp_path):
    settings = {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}
    model = random_llama(len(tokenizer), head_dim=32, **settings)
    write_gguf_model(model, tokenizer, tmp_path / "a.gguf", "F32")
    assert torch.equal(logits(restored(model, tmp_path / "a.gguf")), logits(model))
    assert "output.weight" in read_gguf_file(tmp_path / "a.gguf").tensors


def test_tied_embeddings_are_stored_once_and_in_q8_0_where_the_rest_is_q4_0(tokenizer, tmp_path):
    path = tmp_path / "a.gguf"
    for tied, large in ((True, "token_embd.weight"), (False, "output.weight")):
        model = random_llama(len(tokenizer), tie_word_embeddings=tied)
        write_gguf_model(model, tokenizer, path, "Q4_0")
        tensors = read_gguf_file(path).tensors
        assert ("output.weight" in tensors) is not tied
        types = {name: info.type for name, info in tensors.items() if len(info.shape) == 2}
        assert types.pop(large) == "Q8_0" and set(types.values()) == {"Q4_0"}
        assert {info.type for info in tensors.values() if len(info.shape) == 1} == {"F32"}


def test_the_scalings_of_rope_are_keys_and_frequencies(tokenizer, tmp_path):
    llama3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0}
    llama3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    model = random_llama(len(tokenizer), rope_parameters=llama3)
    write_gguf_model(model, tokenizer, tmp_path / "a.gguf", "F16")
    file = read_gguf_file(tmp_path / "a.gguf")
    factors = file.tensor("rope_freqs.weight")
    plain = 1e4 ** (-torch.arange(0, 16, 2) / 16)
    assert torch.allclose(plain / factors, model.model.rotary_emb.inv_freq)
    assert factors[0] == 1 and factors[-1] == 8
    assert "rope_freqs.weight" not in read_weights(file)
    linear = {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}
    model = random_llama(len(tokenizer), rope_parameters=linear)
    write_gguf_model(model, tokenizer, tmp_path / "a.gguf", "F16")
    keys = read_gguf_file(tmp_path / "a.gguf").metadata
    assert keys["llama.rope.scaling.type"].value == "linear"
    assert keys["llama.rope.scaling.factor"].value == 2
    assert keys["llama.rope.freq_base"].value == 5e5


def test_keys_are_those_that_the_gguf_package_knows(tokenizer, tmp_path):
    write_gguf_model(random_llama(len(tokenizer)), tokenizer, tmp_path / "a.gguf", "Q8_0", "name")
    known = set()
    for group in vars(gguf.Keys).values():
        for key in vars(group).values() if isinstance(group, type) else ():
            if isinstance(key, str):
                known.add(key.replace("{arch}", "llama"))
    keys = read_gguf_file(tmp_path / "a.gguf").metadata
    assert set(keys) <= known
    assert keys["general.file_type"].value == gguf.LlamaFileType.MOSTLY_Q8_0
    assert keys["general.quantization_version"].value == gguf.GGML_QUANT_VERSION


def test_rows_without_a_token_and_added_tokens_have_types_of_their_own(tokenizer):
    metadata = tokenizer_metadata(tokenizer, len(tokenizer) + 2)
    tokens = metadata["tokenizer.ggml.tokens"].value
    types = metadata["tokenizer.ggml.token_type"].value
    assert tokens[-2:] == [f"[PAD{len(tokenizer)}]", f"[PAD{len(tokenizer) + 1}]"]
    assert types[:4] == [3, 3, 3, 1] and types[-2:] == [5, 5]
    tokenizer = trained_tokenizer()
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    metadata = tokenizer_metadata(tokenizer, len(tokenizer))
    assert metadata["tokenizer.ggml.token_type"].value[-1] == 4


def test_a_tokenizer_that_begins_texts_with_bos_says_so(tokenizer):
    from tokenizers.processors import TemplateProcessing

    plain = tokenizer_metadata(tokenizer, len(tokenizer))
    assert plain["tokenizer.ggml.add_bos_token"].value is False
    other = trained_tokenizer()
    bos, eos = SPECIAL[1:]
    for single, expected in ((f"{bos} $A", (True, False)), (f"{bos} $A {eos}", (True, True))):
        processor = TemplateProcessing(single=single, special_tokens=[(bos, 1), (eos, 2)])
        other.backend_tokenizer.post_processor = processor
        keys = tokenizer_metadata(other, len(other))
        adds = tuple(keys[f"tokenizer.ggml.add_{end}_token"].value for end in ("bos", "eos"))
        assert adds == expected


def test_what_a_file_cannot_have_is_refused_and_no_file_is_left(tokenizer, tmp_path):
    rows = len(tokenizer)
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=rows))
    adapted = random_llama(rows)
    inject(adapted, LoRAConfig(rank=2, target_modules=["q_proj"]))
    infinite = random_llama(rows)
    infinite.model.layers[0].mlp.up_proj.weight.data[0, 0] = 1e6
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}
    cases = [
        (gpt2, "F16", ModelError, "architecture llama, got gpt2"),
        (adapted, "F16", ModelError, "unmerged adapter"),
        (infinite, "F16", ModelError, "blk.0.ffn_up.weight has numbers that are not finite in F16"),
        (random_llama(rows, hidden_act="gelu"), "F16", ModelError, "silu, this one has gelu"),
        (random_llama(rows, rope_parameters=yarn), "F16", ModelError, "RoPE is scaled by yarn"),
        (random_llama(rows - 1), "F16", ModelError, f"{rows} tokens, the model {rows - 1}"),
        (random_llama(rows, hidden_size=80), "Q4_0", ValueError, "do not divide 80 columns"),
        (random_llama(rows), "Q5_K", ValueError, "type must be one of F32, F16, Q4_0, Q8_0"),
    ]
    for model, type, kind, message in cases:
        with pytest.raises(kind, match=message) as error:
            write_gguf_model(model, tokenizer, tmp_path / "a.gguf", type)
        assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_tokenizers_that_llama_cpp_would_read_otherwise_are_refused(tokenizer):
    def changed(**changes):
        described = json.loads(tokenizer.backend_tokenizer.to_str()) | changes
        return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(described)))

    described = json.loads(tokenizer.backend_tokenizer.to_str())
    cases = [
        (changed(normalizer={"type": "NFC"}), "normalizes"),
        (changed(model=described["model"] | {"ignore_merges": True}), "ignores its merges"),
        (changed(pre_tokenizer={"type": "Whitespace"}), "splits words by"),
        (PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel())), "WordLevel"),
    ]
    for other, message in cases:
        with pytest.raises(ModelError, match=message):
            tokenizer_metadata(other, 1000)


def test_a_file_of_another_architecture_is_not_read_as_a_llama(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "qwen2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="architecture qwen2, expected llama"):
        read_weights(tmp_path / "a.gguf")
