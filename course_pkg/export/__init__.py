"""Models for other programs: llama.cpp (GGUF) and ONNX Runtime."""
