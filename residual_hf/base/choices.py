"""Choices that the command line lists without importing the modules, as slow as PyTorch, that implement them."""

DECODING_DTYPES = ("float32", "bfloat16", "int8")
EXPORT_TARGETS = ("ctranslate2", "onnx", "torch", "web")
