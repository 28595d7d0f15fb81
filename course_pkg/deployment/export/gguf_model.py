"""A Llama in transformers as a GGUF file, which llama.cpp, Ollama and LM Studio run.

- RoPE turns pairs of numbers; transformers pairs number i of a head with i + d/2, llama.cpp number
  2i with 2i + 1. The rows of q_proj and k_proj are reordered so that both turn the same pairs. A
  file without that loads without an error, and the model writes nonsense.
- Matrices are stored as asked, vectors always in F32. The output matrix, which costs the most
  quality per bit, is Q8_0 in a file of Q4_0. Tied to the embeddings, it is stored once.

Source: convert_hf_to_gguf.py and llama-quant.cpp of llama.cpp.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.acceleration.quantization.gguf_blocks import require_columns, write_gguf
from course_pkg.common.arguments import require_choice
from course_pkg.common.files import atomic_file
from course_pkg.deployment.export.gguf_file import read_gguf_file, write_gguf_file
from course_pkg.deployment.export.gguf_format import PLAIN, GGUFFile, MetadataValue, TensorInfo
from course_pkg.deployment.export.gguf_tokenizer import tokenizer_metadata
from course_pkg.lm.model_errors import ModelError
from course_pkg.lm.pretrained import refuse_adapters

FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7}  # llama_ftype: of most matrices
QUANTIZATION_VERSION = 2
EMBEDDINGS, OUTPUT, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
_ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf_model(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    path: str | os.PathLike,
    type: str = "F16",
    name: str = "model",
) -> None:
    """Write a model with its tokenizer and chat template as one file, atomically.

    Args:
        type: of the matrices, "F32", "F16", "Q8_0" or "Q4_0".
        name: the model's, for people.

    Raises:
        ValueError: for another type or rows that aren't whole blocks of 32.
        ModelError: for what the file can't have, or numbers that are not finite in the type.
    """
    require_choice(type, "type", FILE_TYPES)
    _require_llama(model)
    weights = _by_gguf_name(model)
    infos = []
    for tensor, weight in weights.items():
        kind = _stored_type(tensor, weight, type, tied=OUTPUT not in weights)
        if kind not in PLAIN:
            require_columns(kind, weight.shape[-1])
        infos.append(TensorInfo(tensor, tuple(weight.shape), kind))
    metadata = _model_metadata(model, name)
    metadata["general.file_type"] = MetadataValue("UINT32", FILE_TYPES[type])
    metadata["general.quantization_version"] = MetadataValue("UINT32", QUANTIZATION_VERSION)
    metadata |= tokenizer_metadata(tokenizer, len(weights[EMBEDDINGS]))
    heads = _rotated_heads(metadata)

    def data(info: TensorInfo) -> bytes:
        weight = weights[info.name].detach().float().cpu()
        if rotated := heads.get(info.name.split(".")[-2]):
            weight = interleave(weight, rotated)
        return _encoded(weight, info)

    with atomic_file(Path(path)) as file:
        write_gguf_file(file, metadata, infos, data)


def read_weights(source: str | os.PathLike | GGUFFile) -> dict[str, Tensor]:
    """The weights of a Llama's GGUF file, fp32, by transformers' names and in its order of rows.

    What `load_state_dict` of a LlamaForCausalLM takes; tied embeddings are there once.
    """
    file = source if isinstance(source, GGUFFile) else read_gguf_file(source)
    architecture = file.metadata.get("general.architecture", MetadataValue("STRING", None)).value
    if architecture != "llama":
        raise ModelError(f"{file.path} has the architecture {architecture}, expected llama")
    heads = _rotated_heads(file.metadata)
    weights = {}
    for name in file.tensors:
        if name == ROPE_FACTORS:  # computed from the config in transformers
            continue
        weight = file.tensor(name)
        rotated = heads.get(name.split(".")[-2])
        weights[_transformers_name(name)] = halve(weight, rotated) if rotated else weight
    return weights


def interleave(weight: Tensor, heads: int) -> Tensor:
    """Rows in llama.cpp's order from rows in transformers': i and i + d/2 become 2i and 2i + 1.

    Args:
        weight: (heads · d, columns), or a bias, (heads · d,).

    Example:

        >>> interleave(torch.arange(8), heads=2)
        tensor([0, 2, 1, 3, 4, 6, 5, 7])
    """
    halves = weight.unflatten(0, (heads, 2, -1))  # (heads, 2, d/2, …)
    return halves.transpose(1, 2).flatten(0, 2)


def halve(weight: Tensor, heads: int) -> Tensor:
    """The reverse of `interleave`."""
    pairs = weight.unflatten(0, (heads, -1, 2))  # (heads, d/2, 2, …)
    return pairs.transpose(1, 2).flatten(0, 2)


def _require_llama(model: PreTrainedModel) -> None:
    names = model.state_dict()
    refuse_adapters(names, tied=model.config.tie_word_embeddings)
    config = model.config
    if config.model_type != "llama":
        raise ModelError(
            f"GGUF files are written here for the architecture llama, got {config.model_type}: use "
            "llama.cpp's script convert_hf_to_gguf.py"
        )
    if config.hidden_act != "silu":
        raise ModelError(f"llama.cpp computes a Llama with silu, this one has {config.hidden_act}")
    rope = config.rope_parameters["rope_type"]
    if rope not in ("default", "linear", "llama3"):
        raise ModelError(
            f"RoPE is scaled by {rope}, expected default, linear or llama3: use llama.cpp's script"
        )


def _by_gguf_name(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights by GGUF's names, in the order of the model; the output only if it is its own."""
    state = model.state_dict()
    if torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"]):
        del state["lm_head.weight"]
    weights = {}
    for name, weight in state.items():
        module, _, end = name.rpartition(".")
        weights[f"{_gguf_module(module)}.{end}"] = weight
    if model.config.rope_parameters["rope_type"] == "llama3":
        weights[ROPE_FACTORS] = _rope_factors(model)
    return weights


def _gguf_module(module: str) -> str:
    if module in _ENDS:
        return _ENDS[module]
    parts = module.split(".", 3)  # model, layers, number, module in the layer
    if len(parts) < 4 or parts[3] not in _IN_LAYER:
        raise ModelError(f"GGUF has no name for {module}, which a Llama does not have")
    return f"blk.{parts[2]}.{_IN_LAYER[parts[3]]}"


def _transformers_name(name: str) -> str:
    module, _, end = name.rpartition(".")
    for theirs, ours in _ENDS.items():
        if module == ours:
            return f"{theirs}.{end}"
    _, number, inner = module.split(".")
    theirs = {ours: theirs for theirs, ours in _IN_LAYER.items()}[inner]
    return f"model.layers.{number}.{theirs}.{end}"


def _stored_type(name: str, weight: Tensor, type: str, *, tied: bool) -> str:
    if weight.dim() == 1:
        return "F32"
    if type == "Q4_0" and name == (EMBEDDINGS if tied else OUTPUT):
        return "Q8_0"
    return type


def _encoded(weight: Tensor, info: TensorInfo) -> bytes:
    if info.type not in PLAIN:
        return write_gguf(weight, info.type).codes.numpy().tobytes()
    stored = weight.to(PLAIN[info.type])
    if not torch.isfinite(stored).all():
        raise ModelError(
            f"{info.name} has numbers that are not finite in {info.type}: train it again, or "
            "choose F32 if they are too large for F16"
        )
    return stored.numpy().tobytes()


def _rotated_heads(metadata: Mapping[str, MetadataValue]) -> dict[str, int]:
    """The heads of the modules whose rows RoPE turns."""
    return {
        "attn_q": metadata["llama.attention.head_count"].value,
        "attn_k": metadata["llama.attention.head_count_kv"].value,
    }


def _model_metadata(model: PreTrainedModel, name: str) -> dict[str, MetadataValue]:
    config = model.config
    rope = config.rope_parameters
    numbers = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    reals = {
        "rope.freq_base": rope["rope_theta"],
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    metadata = {
        "general.architecture": MetadataValue("STRING", "llama"),
        "general.type": MetadataValue("STRING", "model"),
        "general.name": MetadataValue("STRING", name),
    }
    metadata |= {f"llama.{key}": MetadataValue("UINT32", number) for key, number in numbers.items()}
    metadata |= {f"llama.{key}": MetadataValue("FLOAT32", number) for key, number in reals.items()}
    if rope["rope_type"] == "linear":
        metadata["llama.rope.scaling.type"] = MetadataValue("STRING", "linear")
        metadata["llama.rope.scaling.factor"] = MetadataValue("FLOAT32", rope["factor"])
    return metadata


def _rope_factors(model: PreTrainedModel) -> Tensor:
    """By what the frequencies of RoPE are divided, (d/2,)."""
    scaled = model.model.rotary_emb.inv_freq.float()
    d = model.config.head_dim
    exponents = torch.arange(0, d, 2, dtype=torch.int64, device=scaled.device).float() / d
    plain = 1.0 / model.config.rope_parameters["rope_theta"] ** exponents
    return plain / scaled
