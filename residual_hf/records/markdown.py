"""Recorded text as Markdown: escaped, and without folders and access tokens of the machine of a run."""

import json
import re
from typing import Any

from .secrets import NAMED, SECRET_NAME, secrets_in

PATH = re.compile(r"(file://)?(~|\.\.?)?[/\\]|[A-Za-z]:[/\\]")
START = r"(?:(?!https?:)[a-z][a-z0-9+.-]{0,20}://|[A-Za-z]:[/\\]|\\\\|~?/(?=[^\s/]+/)|\.\.?[/\\])"
PATHS = re.compile(  # in quotes, also FIELD=PATH; not in quotes; relative, of more parts than a name on the Hub has
    rf"""(?<=")([\w.-]+=)?{START}[^"\n]+|(?<=')([\w.-]+=)?{START}(?:[^'\n]|'"'"')+"""
    rf"""|(?<![\w.:/\\)~-]){START}[^\s=,:;|{{}}'"`()]+"""
    r"""|(?<![\w.:/\\)~-])[\w.-]+(?:[/\\][\w.-]+){2,}"""
)
LOGINS = re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{8,}|(?<=://)[^\s/@]+(?=@)|(?<=Bearer )\S+")
SPECIAL = re.compile(r"([\\`*{}\[\]<>#|!~$&]|(?<!\w)_|_(?!\w))")


def text(value: Any) -> str:
    """Plain text in a line or a cell of a table."""
    return escaped(public(str(value)))


def escaped(value: str) -> str:
    """Like `text`, but keeps paths and text that looks like one: sentences are no records of a machine."""
    return SPECIAL.sub(r"\\\1", " ".join(value.split()))


def code(value: Any, cell: bool = False) -> str:
    """Inline code; `cell` for the cell of a table, which a bar would end."""
    content = " ".join(public(str(value)).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", content)), default=0))
    space = " " if "`" in content else ""
    return fence + space + (content.replace("|", "\\|") if cell else content) + space + fence


def block(value: Any, language: str = "") -> str:
    """A block of code, with a fence that its content cannot close."""
    content = public(str(value)).strip("\n")
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", content)), default=0))
    return f"{fence}{language}\n{content}\n{fence}"


def literal(value: str) -> str:
    """A string literal of Python, such as the name of a model."""
    return json.dumps(value, ensure_ascii=False).replace("`", "'")


def public(value: Any) -> Any:
    """A value, or nested values, without the folders of absolute paths and without access tokens."""
    if isinstance(value, dict):
        named = {key: re.fullmatch(SECRET_NAME, str(key)) and isinstance(entry, str) for key, entry in value.items()}
        return {key: "***" if named[key] else public(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [public(entry) for entry in value]
    if not isinstance(value, str):
        return value
    value = LOGINS.sub("***", NAMED.sub(r"\1***", value))
    for _, secret in secrets_in(value):
        value = value.replace(secret, "***")
    if PATH.match(value) and "\n" not in value:
        return file_name(value)
    return PATHS.sub(lambda match: (match[1] or match[2] or "") + file_name(match[0]), value)


def file_name(path: str) -> str:
    """The last part of a path of any operating system."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
