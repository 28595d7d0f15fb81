"""Models for other programs: llama.cpp (GGUF) and ONNX Runtime.

>>> from course_pkg.deployment.export import OnnxDecoder, export_onnx, write_gguf_model
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
