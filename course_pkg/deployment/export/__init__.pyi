from .export_model import export as export
from .gguf_file import read_gguf_file as read_gguf_file
from .gguf_model import read_weights as read_weights, write_gguf_model as write_gguf_model
from .merged import load_merged as load_merged
from .ollama import modelfile as modelfile
from .onnx_model import export_onnx as export_onnx, quantize_onnx as quantize_onnx
from .onnx_session import OnnxDecoder as OnnxDecoder
