"""Small random models of the three families, and our decoder with the same weights."""

import torch
from transformers import LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM

from course_pkg.lm.decoder import Decoder

SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
SIZES |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
MODELS = {"llama": LlamaForCausalLM, "mistral": MistralForCausalLM, "qwen2": Qwen2ForCausalLM}


def pair(family, **settings):
    """A random transformers model with large weights and biases, and our decoder for it."""
    model = MODELS[family]
    torch.manual_seed(0)
    theirs = model(model.config_class(**SIZES | settings)).eval()
    with torch.no_grad():  # large enough that attention is far from uniform
        for name, parameter in theirs.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.3)
    return Decoder.from_transformers(theirs), theirs


def tokens(batch, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SIZES["vocab_size"], (batch, length), generator=generator)


def left_mask(*real, length):
    """A mask of rows with these numbers of real tokens, padded on the left: bool."""
    return torch.arange(length) >= length - torch.tensor(real)[:, None]
