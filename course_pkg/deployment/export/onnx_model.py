"""Write a model as an ONNX folder: the graph, its weights, the tokenizer and the settings.

`onnx_session.OnnxDecoder` runs such a folder, and so do programs in other languages. Files:

    model.onnx          the graph
    model.onnx_data     its weights, apart, so that the runtime can map them into memory
    model_int8.onnx     by `quantize_onnx`: graph and weights, most of them in int8
    config.json, generation_config.json, and the tokenizer's files

Chapter: deployment/edge.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from onnx import TensorProto, helper
from torch import Tensor
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.files import atomic_file
from course_pkg.deployment.export.onnx_graph import decoder_graph
from course_pkg.lm import smollm2
from course_pkg.lm.decoder import Decoder
from course_pkg.lm.model_errors import ModelError

MODEL = "model.onnx"
DATA = "model.onnx_data"
INT8 = "model_int8.onnx"
PAGE = 4096  # bytes; a tensor that starts at a multiple of it can be mapped into memory


def export_onnx(model: PreTrainedModel, tokenizer: Tokenizer, folder: str | Path) -> Path:
    """Write a decoder with a KV cache, and its tokenizer, into a folder; return model.onnx.

    model: transformers' Llama, Mistral or Qwen2; weights of any floating type are stored in fp32.
    Layers that `quantize_layers` rounded to 4 or 8 bits in groups keep their codes. Raises
    ModelError for other models or formats, and if an adapter is not merged.

    >>> from tempfile import TemporaryDirectory
    >>> from course_pkg.lm.load import load
    >>> with TemporaryDirectory() as folder:
    ...     path = export_onnx(*load("tiny"), folder)
    ...     sorted(file.name for file in path.parent.glob("model*"))
    ['model.onnx', 'model.onnx_data']
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
    Raises ModelError if the folder has no model.onnx.

    Source: ONNX Runtime's documentation, "Quantize ONNX models".
    """
    source = Path(folder).expanduser() / MODEL
    if not source.is_file():
        raise ModelError(f"{source} does not exist: write it with export_onnx")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = source.with_name(INT8)
    with _without_warnings():
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
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


@contextmanager
def _without_warnings() -> Iterator[None]:
    """The tool tells every caller to run another one first, which changes nothing here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
