MARKERS = (
    "accelerate_tests",
    "executorch_export_test",
    "flash_attn_test",
    "flash_attn_3_test",
    "flash_attn_4_test",
    "generate",
    "onnx_export_test",
    "order",
    "torch_compile_test",
    "torch_export_test",
)


def pytest_configure(config):
    for marker in MARKERS:
        config.addinivalue_line("markers", f"{marker}: of Transformers")
