"""Models for other programs: llama.cpp (GGUF) and ONNX Runtime.

>>> from course_pkg.deployment.export import OnnxDecoder, export_onnx, write_gguf_model
"""

from course_pkg.common.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.deployment.export.export_model": "export",
    "course_pkg.deployment.export.gguf_file": "read_gguf_file",
    "course_pkg.deployment.export.gguf_model": "read_weights write_gguf_model",
    "course_pkg.deployment.export.merged": "load_merged",
    "course_pkg.deployment.export.onnx_model": "export_onnx quantize_onnx",
    "course_pkg.deployment.export.onnx_session": "OnnxDecoder",
    "course_pkg.deployment.export.ollama": "modelfile",
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
