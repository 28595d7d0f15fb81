"""A complete language model in milliseconds: a random two-layer Llama that reads bytes.

It has every part of SmolLM2 (grouped-query attention, tied embeddings, the same names of modules
and of special tokens, a chat template), but it is untrained: use it to check shapes, gradients and
equalities.
"""

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD = "<|endoftext|>"
BOS = "<|im_start|>"
EOS = "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_symbols() -> list[str]:
    """The 256 printable characters that represent bytes in a byte-level vocabulary.

    Printable Latin-1 bytes represent themselves; other bytes get characters from U+0100 on.
    Source: GPT-2 (Radford et al. 2019), section 2.2 and its released encoder.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: ids 0 to 255 are UTF-8 bytes; pad, bos and eos follow.

    The special tokens have the names of SmolLM2's, and are recognized in text in the same way.
    """
    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, BOS, EOS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="left",
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def tiny_model(seed: int = 0) -> LlamaForCausalLM:
    """A random Llama in fp32 for `tiny_tokenizer`: about 0.1 million parameters.

    The same seed gives the same weights, and torch's global generator does not change.
    """
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=256,
        bos_token_id=257,
        eos_token_id=258,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return LlamaForCausalLM(config).eval()
