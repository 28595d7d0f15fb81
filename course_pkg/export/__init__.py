"""Models for other programs: llama.cpp (GGUF) and ONNX Runtime.

>>> from course_pkg.export import OnnxDecoder, export_onnx, read_gguf_file, write_gguf_model
"""

from course_pkg.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.export.export_model": "export",
    "course_pkg.export.gguf_file": "read_gguf_file",
    "course_pkg.export.gguf_model": "read_weights write_gguf_model",
    "course_pkg.export.merged": "load_merged",
    "course_pkg.export.onnx_model": "export_onnx quantize_onnx",
    "course_pkg.export.onnx_session": "OnnxDecoder",
    "course_pkg.export.ollama": "modelfile",
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
