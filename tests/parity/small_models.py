"""Small random models and batches, on which adapters are tested and compared with PEFT's."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from course_pkg.adapters.injection import trainable_parameters

TOKENS = torch.arange(24).reshape(2, 12)
BATCH = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS), "labels": TOKENS}
TEXT = TOKENS + 1  # without token 0, which pads
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 32,
         "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
FOUR_HEADS = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2}


def llama(sizes=SIZES, **settings):
    """A Llama of two layers; its biases, if the settings give it any, are not zero."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes | settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return model


def gpt2():
    """A GPT-2 of two layers without dropout."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=32, resid_pdrop=0, embd_pdrop=0,
                   attn_pdrop=0, bos_token_id=0, eos_token_id=0)
    )  # fmt: skip


def padded_batch(padding, positions=False):
    """Two texts, the first of them 4 tokens shorter if padded; pads and their labels are masked."""
    ids, mask = TEXT.clone(), torch.ones_like(TEXT)
    pads = {"left": slice(None, 4), "right": slice(8, None), "none": slice(0, 0)}[padding]
    if padding == "left":
        ids[0, 4:] = TEXT[0, :8]
    ids[0, pads], mask[0, pads] = 0, 0
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    if positions:
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return inputs


def run(model, inputs):
    """The model's output, without gradients."""
    with torch.no_grad():
        return model(**inputs)


def logits(model, tokens=TOKENS, **inputs):
    """The model's logits for the tokens."""
    return run(model, {"input_ids": tokens, **inputs}).logits


def error(ours, theirs):
    """The relative error ‖ours - theirs‖ / ‖theirs‖, computed in fp64."""
    ours, theirs = ours.double(), theirs.double()
    return ((ours - theirs).norm() / theirs.norm()).item()


def close(ours, theirs):
    """Whether the relative error is at most 1e-6."""
    return (ours - theirs).norm() <= 1e-6 * theirs.norm()


def shaken(model, seed=1):
    """The model, after random numbers were added to all weights of its adapter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trainable_parameters(model).values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) / 4)
    return model
