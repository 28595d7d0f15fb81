"""Models for other programs: llama.cpp (GGUF) and ONNX Runtime.

>>> from course_pkg.export import modelfile, read_gguf_file, read_weights, write_gguf_model
"""

from course_pkg.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.export.export_model": "export",
    "course_pkg.export.gguf_file": "read_gguf_file",
    "course_pkg.export.gguf_model": "read_weights write_gguf_model",
    "course_pkg.export.merged": "load_merged",
    "course_pkg.export.ollama": "modelfile",
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
