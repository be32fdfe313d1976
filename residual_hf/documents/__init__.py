# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Documents in the formats of offices, translators and the web, whose text is replaced and whose layout stays."""

ARCHIVES = (".docx", ".pptx", ".odt", ".odp", ".ods", ".epub")
DOCUMENTS = (
    *(".html", ".htm", ".xhtml", ".md", ".markdown", ".mdx", ".srt", ".vtt"),
    *(*ARCHIVES, ".po", ".pot", ".xlf", ".xliff"),
)
"""Ends of the names of documents; text files are translated line by line."""
