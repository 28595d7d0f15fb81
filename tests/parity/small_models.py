"""Small random models and batches, on which adapters are tested and compared with PEFT's."""

import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    OPTConfig,
    Qwen2Config,
    T5Config,
)

from course_pkg.adapters.adapter_io import save_adapter
from course_pkg.adapters.injection import inject, trainable_parameters
from tests.tolerance import rounding

# Each of the two layers has four matrices one after another, and then there is the head; the
# longest sum has 48 terms.
EQUAL = rounding(48, steps=2 * 4 + 1)  # 2.5e-6
TOKENS = torch.arange(24).reshape(2, 12)
BATCH = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS), "labels": TOKENS}
TEXT = TOKENS + 1  # without token 0, which pads
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
FOUR_HEADS = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2}

_ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_HEADS = {"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 97, **_ENDS}
_WIDTHS = {"hidden_size": 32, "intermediate_size": 48, **_HEADS}
_OPT = {"hidden_size": 32, "ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0, **_HEADS}
_T5 = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 97}
FAMILIES = {
    "llama": LlamaConfig(**_WIDTHS, num_key_value_heads=2),
    "tied": LlamaConfig(**_WIDTHS, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**_WIDTHS, num_key_value_heads=1),
    "opt": OPTConfig(**_OPT),
    "mixtral": MixtralConfig(**_WIDTHS, num_key_value_heads=2, num_local_experts=4),
    "t5": T5Config(**_T5, dropout_rate=0.0),
    "bert": BertConfig(**_WIDTHS, hidden_dropout_prob=0.0),
}


def family(name):
    """A random model of a family: five decoders, of which one has experts; T5; and BERT."""
    torch.manual_seed(0)
    auto = {"t5": AutoModelForSeq2SeqLM, "bert": AutoModelForMaskedLM}
    return auto.get(name, AutoModelForCausalLM).from_config(FAMILIES[name]).eval()


def llama(sizes=SIZES, **settings):
    """A Llama of two layers; its biases, if the settings give it any, are not zero."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes | settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return model


def gpt2(**settings):
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 32}
    dropout = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return AutoModelForCausalLM.from_config(GPT2Config(**sizes | dropout | ends | settings))


def small(kind):
    """A small model: "llama", "bias" (on every layer), "bf16" or "gpt2"."""
    if kind == "gpt2":
        return gpt2()
    model = llama(attention_bias=kind == "bias", mlp_bias=kind == "bias")
    return model.to(torch.bfloat16 if kind == "bf16" else torch.float32)


def padded_batch(padding, positions=False):
    """Two texts, the first of them 4 tokens shorter if padded; pads and their labels are masked."""
    ids = TEXT.clone()
    mask = torch.ones_like(TEXT)
    pads = {"left": slice(None, 4), "right": slice(8, None), "none": slice(0, 0)}[padding]
    if padding == "left":
        ids[0, 4:] = TEXT[0, :8]
    ids[0, pads] = 0
    mask[0, pads] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    if positions:
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return inputs


def run(model, inputs):
    with torch.no_grad():
        return model(**inputs)


def logits(model, tokens=TOKENS, **inputs):
    """The model's logits for the tokens, which an encoder-decoder also gets as its output."""
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens
    return run(model, {"input_ids": tokens, **inputs}).logits


def error(ours, theirs):
    """The relative error ‖ours - theirs‖ / ‖theirs‖, computed in fp64."""
    ours, theirs = ours.double(), theirs.double()
    return ((ours - theirs).norm() / theirs.norm()).item()


def close(ours, theirs):
    """Whether the relative error is at most that of another order of the same sums."""
    return error(ours, theirs) <= EQUAL


def shaken(model, seed=1):
    """The model, ours or PEFT's, after random numbers were added to all that it trains."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in trainable_parameters(model).items():
            if "ranknum" not in name:  # a constant that PEFT's AdaLoRA keeps among the weights
                parameter.add_(torch.randn(parameter.shape, generator=generator) / 4)
    return model


def pair_of(build, config, folder):
    """Our model and PEFT's with the same random adapter, by way of our file."""
    ours = build()
    inject(ours, config)
    save_adapter(shaken(ours), folder)
    return ours, PeftModel.from_pretrained(build(), folder, is_trainable=True)
