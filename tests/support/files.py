# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""What is in folders, and files with a damage."""


def content(folder):
    """Bytes of the files in a folder by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip(path, place=0.5):
    """Flip a bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)
