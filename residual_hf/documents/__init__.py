"""Documents in the formats of offices, translators and the web, whose text is replaced and whose layout stays."""

from residual_hf.data.data_settings import PO, XLIFF

HTML = (".html", ".htm", ".xhtml")
MARKDOWN = (".md", ".markdown", ".mdx")
SUBTITLES = (".srt", ".vtt")
EBOOKS = (".epub",)
ARCHIVES = (".docx", ".pptx", ".xlsx", ".odt", ".odp", ".ods", *EBOOKS)
XML_MESSAGES = (".xml", ".resx", ".resw", ".ts")
MESSAGES = (*XML_MESSAGES, ".yml", ".yaml")
BILINGUAL = (*PO, *XLIFF, ".ts")
"""Those that keep the original beside its translation."""
KEY_VALUES = (".properties", ".strings", ".json", ".arb", ".ini")
DOCUMENTS = (*HTML, *MARKDOWN, *SUBTITLES, *ARCHIVES, *PO, *XLIFF, *MESSAGES, *KEY_VALUES)
"""Ends of the names of documents; text files are translated line by line."""
BINARY = {
    "save it as .docx": (".doc", ".rtf", ".pdf", ".pages", ".wpd", ".docm"),
    "save it as .xlsx or .ods": (".xls", ".xlsb", ".xlsm", ".numbers"),
    "save it as .pptx": (".ppt", ".pptm", ".key"),
    "export it as .epub or .html": (".idml", ".indd", ".pub"),
    "unpack it": (".zip", ".7z", ".tar"),
    "export it as .po": (".mo", ".qm"),
    "read its text first": (".png", ".jpg", ".jpeg", ".gif", ".tif", ".tiff", ".mp3", ".mp4", ".wav"),
}
REFUSED = {
    **BINARY,
    "export it as XLIFF, or train on it": (".tmx", ".tbx"),
    "save it as .xlsx, or its texts as lines of a .txt file": (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"),
    "convert it to Markdown or HTML": (
        *(".rst", ".tex", ".latex", ".adoc", ".asciidoc", ".org", ".textile", ".wiki", ".mediawiki"),
        *(".ipynb", ".typ", ".dita", ".ditamap", ".docbook", ".dbk"),
    ),
    "convert it to .srt or .vtt": (".ass", ".ssa", ".sub", ".sbv", ".smi", ".ttml", ".dfxp"),
    "convert it to .po or XLIFF": (
        *(".ftl", ".php", ".toml", ".rc", ".dtd", ".lang", ".xcstrings", ".stringsdict", ".wxl", ".qph", ".resjson"),
        *(".plist", ".svg", ".js", ".jsx", ".tsx", ".vue", ".svelte", ".css", ".py", ".java"),
    ),
}
"""Advice for files that are neither documents nor lines of text, by the ends of their names."""
