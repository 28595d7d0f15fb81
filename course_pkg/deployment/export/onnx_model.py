"""Write a model as an ONNX folder: the graph, its weights, the tokenizer and the settings.

A call of the graph reads `tokens` new tokens for each of `batch` sequences, after `past` tokens in
the cache. Inputs and outputs have the names that Optimum gives them::

    input_ids, position_ids            (batch, tokens), int64
    attention_mask                     (batch, past + tokens), int64, 1 at real tokens
    past_key_values.0.key, .value, …   (batch, kv_heads, past, head_dim)
    num_logits_to_keep                 a scalar, int64; 0 keeps all
    logits                             (batch, kept, vocab_size)
    present.0.key, .value, …           (batch, kv_heads, past + tokens, head_dim)

Sources: the reference of ONNX operators, set 23; ONNX Runtime's "Contributed operators".
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.acceleration.quantization.grouped import GroupedWeight, pack
from course_pkg.acceleration.quantization.quantized_linear import QuantizedLinear
from course_pkg.common.files import atomic_file
from course_pkg.lm import smollm2
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.decoder_config import DecoderConfig
from course_pkg.lm.model_errors import ModelError
from course_pkg.lm.rope import rope_frequencies

OPERATOR_SET = 23
FORMAT = 11  # of the file, the oldest that may hold this operator set
KEEP = "num_logits_to_keep"

RUNTIME = "com.microsoft"  # the domain of the operators that ONNX Runtime adds
INT8_ACTIVATIONS = 4  # an accuracy level of MatMulNBits: it rounds each block of x to 8 bits

Store = Callable[[str, Tensor], TensorProto]


def decoder_graph(decoder: Decoder, store: Store) -> onnx.ModelProto:
    """The graph of a decoder, in fp32, with quantized layers as they are.

    Args:
        store: takes a weight's name and its values, and returns the tensor for the graph, which
            holds the values or says where they are.

    Raises:
        ModelError: for RoPE whose angles depend on the length of the text, or a quantized layer in
            a format that no operator reads.
    """
    kind = decoder.config.rope["rope_type"]
    if kind in ("dynamic", "longrope"):
        raise ModelError(
            f"RoPE of type {kind} depends on the length of the text, which this graph does not "
            "know in advance: use transformers, or Optimum's exporter"
        )
    for path, layer in decoder.named_modules():
        if isinstance(layer, QuantizedLinear) and not _has_operator(layer):
            raise ModelError(
                f"{path} has {layer.quantized.describe()}: ONNX Runtime reads 4 or 8 bits in "
                "groups of 16, 32, 64, 128 or 256 neighbors, such as Grid(4, 32)"
            )
    return _Graph(decoder, store).build()


def _has_operator(layer: QuantizedLinear) -> bool:
    weight = layer.quantized
    if not isinstance(weight, GroupedWeight) or weight.order is not None:
        return False
    return weight.grid.bits in (4, 8) and weight.grid.group_size in (16, 32, 64, 128, 256)


def cache_names(prefix: str, layer: int) -> list[str]:
    """The names of a layer's keys and values; prefix: "past_key_values" or "present"."""
    return [f"{prefix}.{layer}.{part}" for part in ("key", "value")]


class _Graph:
    """Collects operators and weights on a walk through a decoder."""

    def __init__(self, decoder: Decoder, store: Store):
        self.config = decoder.config
        self.decoder = decoder
        self.weights = decoder.state_dict()
        self.store = store
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}

    def build(self) -> onnx.ModelProto:
        inputs, outputs = _interface(self.config)
        x = self.op("embeddings", "Gather", self.weight("embed_tokens.weight"), "input_ids")
        cos, sin = self.rotation()
        masks = {window: self.mask(window) for window in dict.fromkeys(self.config.windows)}
        for layer in range(self.config.layers):
            x = self.attention(layer, x, cos, sin, masks[self.config.window(layer)])
            x = self.mlp(layer, x)
        self.head(x)
        initializers = list(self.initializers.values())
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, initializers)
        opset_imports = [helper.make_opsetid("", OPERATOR_SET), helper.make_opsetid(RUNTIME, 1)]
        return helper.make_model(graph, opset_imports=opset_imports, ir_version=FORMAT)

    def rotation(self) -> tuple[str, str]:
        """RoPE's cosines and sines at the positions, (batch, tokens, head_dim/2) each."""
        frequencies, scale = rope_frequencies(self.config)
        positions = self.op("positions", "Cast", "position_ids", to=TensorProto.FLOAT)
        column = self.op("positions.column", "Unsqueeze", positions, self.constant([-1]))
        inverse = self.constant(frequencies, "frequencies")
        angles = self.op("angles", "Mul", column, inverse)  # (batch, tokens, head_dim/2)
        factor = self.constant(torch.tensor(scale), "rope_scale")
        cos = self.op("cos", "Mul", self.op("cos.unscaled", "Cos", angles), factor)
        sin = self.op("sin", "Mul", self.op("sin.unscaled", "Sin", angles), factor)
        return cos, sin

    def mask(self, window: int | None) -> str:
        """Which slots of the cache each new token sees, (batch, 1, tokens, past + tokens).

        Padding on the left sees nothing, so its softmax is 0/0. The operator has to give numbers
        there: a NaN in the cache would spoil every later token, because 0 · NaN is NaN.
        """
        name = f"mask.{window}" if window else "mask"
        total = self.size(f"{name}.total", "attention_mask", 1)
        past = self.op(f"{name}.past", "Sub", total, self.size(f"{name}.new", "input_ids", 1))
        zero = self.constant(torch.tensor(0))
        one = self.constant(torch.tensor(1))
        key = self.op(f"{name}.key", "Range", zero, total, one)  # (past + tokens,)
        new = self.op(f"{name}.slots", "Range", past, total, one)  # (tokens,)
        query = self.op(f"{name}.query", "Unsqueeze", new, self.constant([-1]))  # (tokens, 1)
        seen = self.op(f"{name}.causal", "LessOrEqual", key, query)  # (tokens, past + tokens)
        if window:
            oldest = self.op(f"{name}.oldest", "Sub", query, self.constant(torch.tensor(window)))
            near = self.op(f"{name}.near", "Greater", key, oldest)
            seen = self.op(f"{name}.causal_near", "And", seen, near)
        real = self.op(f"{name}.real", "Cast", "attention_mask", to=TensorProto.BOOL)
        real = self.op(f"{name}.columns", "Unsqueeze", real, self.constant([1, 2]))
        return self.op(name, "And", seen, real)  # (batch, 1, tokens, past + tokens)

    def attention(self, layer: int, x: str, cos: str, sin: str, mask: str) -> str:
        """x + attention(norm(x)), (batch, tokens, hidden); the cache becomes an output."""
        path = f"layers.{layer}.self_attn"
        heads, kv_heads = self.config.heads, self.config.kv_heads
        normed = self.norm(f"layers.{layer}.input_layernorm", x)
        query = self.linear(f"{path}.q_proj", normed)  # (batch, tokens, heads * head_dim)
        key = self.linear(f"{path}.k_proj", normed)  # (batch, tokens, kv_heads * head_dim)
        value = self.linear(f"{path}.v_proj", normed)
        query = self.op(f"{path}.q", "RotaryEmbedding", query, cos, sin, num_heads=heads)
        key = self.op(f"{path}.k", "RotaryEmbedding", key, cos, sin, num_heads=kv_heads)
        inputs = [query, key, value, mask, *cache_names("past_key_values", layer)]
        outputs = [f"{path}.read", *cache_names("present", layer)]
        sizes = {"q_num_heads": heads, "kv_num_heads": kv_heads}
        self.nodes.append(helper.make_node("Attention", inputs, outputs, path, **sizes))
        out = self.linear(f"{path}.o_proj", f"{path}.read")
        return self.op(f"{path}.added", "Add", x, out)

    def mlp(self, layer: int, x: str) -> str:
        """x + down(silu(gate(norm(x))) * up(norm(x))), (batch, tokens, hidden)."""
        path = f"layers.{layer}.mlp"
        normed = self.norm(f"layers.{layer}.post_attention_layernorm", x)
        gate = self.linear(f"{path}.gate_proj", normed)  # (batch, tokens, intermediate)
        silu = self.op(f"{path}.silu", "Mul", gate, self.op(f"{path}.sigmoid", "Sigmoid", gate))
        inner = self.op(f"{path}.inner", "Mul", silu, self.linear(f"{path}.up_proj", normed))
        return self.op(f"{path}.added", "Add", x, self.linear(f"{path}.down_proj", inner))

    def head(self, x: str) -> None:
        """The logits of the last tokens, as many as `num_logits_to_keep` says."""
        kept = self.op("kept.column", "Unsqueeze", KEEP, self.constant([0]))
        start = self.op("first_kept", "Neg", kept)
        end = self.constant([torch.iinfo(torch.int64).max])
        x = self.norm("norm", self.op("kept", "Slice", x, start, end, self.constant([1])))
        if not self.config.tied:
            self.linear("lm_head", x, "logits")
            return
        # Gemm can read the embedding matrix as it is, so it is stored once; it takes 2-D inputs.
        rows = self.op("rows", "Reshape", x, self.constant([-1, self.config.hidden_size]))
        scores = self.op("scores", "Gemm", rows, "embed_tokens.weight", transB=1)
        kept = self.op("kept.sizes", "Shape", x, start=0, end=2)
        vocab = self.constant([self.config.vocab_size])
        self.op("logits", "Reshape", scores, self.op("sizes", "Concat", kept, vocab, axis=0))

    def norm(self, path: str, x: str) -> str:
        weight = self.weight(f"{path}.weight")
        eps = self.config.rms_norm_eps
        return self.op(path, "RMSNormalization", x, weight, axis=-1, epsilon=eps)

    def linear(self, path: str, x: str, output: str = "") -> str:
        """x Wᵀ + b, (batch, tokens, out)."""
        output = output or path
        bias = f"{path}.bias"
        product = f"{path}.product" if bias in self.weights else output
        layer = self.decoder.get_submodule(path)
        if isinstance(layer, QuantizedLinear):
            self.quantized_product(path, x, product, layer.quantized)
        else:  # MatMul takes a matrix of shape (in, out), so the transpose is stored
            self.op(product, "MatMul", x, self.weight(f"{path}.weight", transposed=True))
        if bias in self.weights:
            self.op(output, "Add", product, self.weight(bias))
        return output

    def quantized_product(self, path: str, x: str, output: str, weight: GroupedWeight) -> None:
        """x Ŵᵀ for codes c in groups: ŵ = scale · (c − zero). The operator takes packed codes."""
        bits = weight.grid.bits
        out_features, groups = weight.scale.shape
        zero = weight.zero if bits == 8 else pack(weight.zero, bits)[:, : -(-groups // 2)]
        stored = {
            f"{path}.codes": weight.codes.view(out_features, groups, -1),
            f"{path}.scale": weight.scale.float(),
            f"{path}.zero": zero,
        }
        for name, values in stored.items():
            self.initializers[name] = self.store(name, values)
        sizes = {"N": out_features, "K": weight.columns, "bits": bits}
        sizes |= {"block_size": weight.grid.group_size, "accuracy_level": INT8_ACTIVATIONS}
        self.op(output, "MatMulNBits", x, *stored, domain=RUNTIME, **sizes)

    def op(self, name: str, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator with one output, which has the operator's name; return the name."""
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def size(self, name: str, tensor: str, axis: int) -> str:
        shape = self.op(f"{name}.shape", "Shape", tensor, start=axis, end=axis + 1)
        return self.op(name, "Squeeze", shape)

    def weight(self, name: str, transposed: bool = False) -> str:
        values = self.weights[name].float()
        self.initializers[name] = self.store(name, values.T if transposed else values)
        return name

    def constant(self, values: Sequence[int] | Tensor, name: str = "") -> str:
        """Numbers in the graph itself; without a name, the same numbers are stored once."""
        array = torch.as_tensor(values).numpy()
        name = name or f"constant.{array.tolist()}"
        self.initializers[name] = numpy_helper.from_array(array, name)
        return name


def _interface(config: DecoderConfig) -> tuple[list[onnx.ValueInfoProto], ...]:
    """The inputs and outputs, with names for the sizes that a call may choose."""
    integers = {
        "input_ids": ["batch", "tokens"],
        "attention_mask": ["batch", "past + tokens"],
        "position_ids": ["batch", "tokens"],
        KEEP: [],
    }
    inputs = [_value(name, sizes, TensorProto.INT64) for name, sizes in integers.items()]
    outputs = [_value("logits", ["batch", "kept", config.vocab_size])]
    for layer in range(config.layers):
        for name in cache_names("past_key_values", layer):
            inputs.append(_value(name, ["batch", config.kv_heads, "past", config.head_dim]))
        for name in cache_names("present", layer):
            sizes = ["batch", config.kv_heads, "past + tokens", config.head_dim]
            outputs.append(_value(name, sizes))
    return inputs, outputs


def _value(name: str, sizes: list[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, sizes)


MODEL = "model.onnx"
DATA = "model.onnx_data"
INT8 = "model_int8.onnx"
PAGE = 4096  # bytes; a tensor that starts at a multiple of it can be mapped into memory


def export_onnx(model: PreTrainedModel, tokenizer: Tokenizer, folder: str | Path) -> Path:
    """Write a decoder with a KV cache, and its tokenizer, into a folder; return model.onnx.

    Args:
        model: transformers' Llama, Mistral or Qwen2; weights of any floating type are stored in
            fp32. Layers that `quantize_layers` rounded to 4 or 8 bits in groups keep their codes.

    Raises:
        ModelError: for other models or formats, and if an adapter is not merged.
    """
    decoder = Decoder.from_transformers(model)
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder / DATA) as file:
        graph = decoder_graph(decoder, lambda name, values: _external(file, name, values))
    with atomic_file(folder / MODEL) as file:
        file.write(graph.SerializeToString())
    with smollm2.quiet():
        model.config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder / MODEL


def quantize_onnx(folder: str | Path) -> Path:
    """Write model_int8.onnx beside an exported model.onnx, by ONNX Runtime's dynamic quantization.

    Weights get a scale per output channel; activations are rounded to 8 bits in each call, with one
    scale for all of its tokens. The embedding stays in fp32; an output matrix that was tied to it
    becomes a second matrix. Two settings matter: only products are quantized, because the tool
    takes this graph's Attention for another operator of that name; and weights get 7 of the 8 bits,
    because processors without VNNI add pairs of 8-bit products in 16 bits, which would overflow.
    """
    source = Path(folder).expanduser() / MODEL
    if not source.is_file():
        raise ModelError(f"{source} does not exist: write it with export_onnx")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = source.with_name(INT8)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it tells every caller to run another tool, for no gain here
    try:
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    finally:
        logging.disable(before)
    return target


def _external(file: BinaryIO, name: str, values: Tensor) -> TensorProto:
    """Append a tensor's values to a file; return a tensor that says where they are."""
    file.write(bytes(-file.tell() % PAGE))
    start = file.tell()
    array = values.detach().cpu().contiguous().numpy()
    file.write(array.data)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = TensorProto(name=name, dims=array.shape, data_type=kind)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": DATA, "offset": start, "length": array.nbytes}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor
