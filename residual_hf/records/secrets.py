"""Access tokens, keys and passwords in text.

They are found by the detectors of `detect-secrets`, and by patterns for those that it lacks.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from safetensors import safe_open

from residual_hf.base.files import read_json

PASSWORD = "passw(?:or)?[dt]|passphrase|passcode|pwd|secret"
SECRET_NAME = rf"(?i:[\w-]*(?:(?:api|access|account|auth|secret|private|hub|hf)[_-]?(?:key|token)|{PASSWORD}))"
NAMED = re.compile(
    rf"""(?<![\w-])({SECRET_NAME}["']?\s*[=:]\s*|--{SECRET_NAME}\s+)(?:"[^"\n]*"|'[^'\n]*'|[^\s'",}}&]+)"""
)
NAME, IS = r"(?<![\w-])[\w-]*", r"""["'`*]{0,3}[ \t]*[=:][ \t]*["'`*]{0,3}"""
DIGIT = r"""(?=[^\s"'`]{0,100}\d)"""
PATTERNS = {  # what detect-secrets lacks; a group is the secret without its label
    # labels: not the prose of a translation, but a value with a digit or sign, or one word in a line of its own
    "Password": rf"""(?i:{NAME}(?:{PASSWORD}|(?<![a-z])pass)(?:{IS}|(?<=--password)[ ]))(?![<$({{\[])"""
    r"""(?=[^\s"'`]{0,100}[\d!#$%&@?^+])([^\s"'`,;()<>\[\]]{6,})"""
    rf"""|(?im:^[ \t>*"'`-]*\w*passw(?:or)?[dt]{IS})(?![<$({{\[])([^\s"'`*|()]{{6,100}})["'`*,]*$"""
    rf"""|(?i:<[\w:-]{{0,40}}(?:{PASSWORD}|key|token)>)(?=[^\s<]{{0,100}}\d)([^\s<${{]{{6,100}})</""",
    "Named Key or Token": rf"(?i:{NAME}(?:key|token|auth|cookie|session(?:_?id)?){IS})"
    r"(?=[\w~+=-]{0,100}\d)(?=[\w~+=-]{0,100}[A-Za-z])([\w~+=-]{16}[\w.~+/=-]*)"
    rf"""|(?<![\w-]){SECRET_NAME}{IS}{DIGIT}([\w.~+/=-]{{8,}})|\b[A-Z][A-Z0-9_]{{0,60}}_(?:KEY|TOKEN)=([A-Za-z0-9]{{20,}})"""
    rf"""|(?i:[?&;][\w-]*sig(?:nature)?=|\bauthorization["']?: ?\w+ |\bbearer ){DIGIT}([\w.~+/=%-]{{16,}})""",
    "Password in Prose": r"(?i:\bpassphrase" + IS + r"""(?=[^"'`\n]{0,60}\d)([^"'`\n<$({\[]{8,60}))"""
    r"""|(?i:\b(?:passw(?:or)?[dt]|passphrase)[ ](?:is|ist)[ ]["'`]?)(?=[^\s"'`]{0,100}[A-Za-z])"""
    r"""(?=[^\s"'`]{0,100}\d)([^\s"'`]{6,100})|\bsshpass[ ]-p[ ]?["']?([^\s"'$<{]{4,})""",
    "Login": r"""://[^\s/@:]{0,100}:([^\s/@]+)@|(?<=\s-u )["']?[^\s/@:]{1,100}:([^\s"']{4,})"""
    r"|\bgit\+https?://(?=[^\s/@:]{0,100}\d)([^\s/@:]{16,100})@|://([\w-]{20,100})@(?:github|gitlab|bitbucket|huggingface)\."
    r"|\blogin\s{1,9}\S{1,100}\s{1,9}password\s{1,9}(\S+)",
    # forms: known words, or any before letters of both cases and digits
    "Hugging Face Token": r"\b(?:hf|api_org)_(?:(?=[a-z]{0,40}[A-Z0-9])[A-Za-z0-9]{8,}|[A-Za-z0-9]{20,})",
    "Token": r"(?<![A-Za-z0-9])[A-Za-z]\w{1,9}[_.-](?=(?:[A-Za-z]{0,40}\d){2})(?=[a-z\d]{0,40}[A-Z])"
    r"(?=[A-Z\d]{0,40}[a-z])[A-Za-z0-9]{20,}|\b(?:key-|dapi)[0-9a-f]{32}|\b(?:ATATT3|EAA[A-Z])[\w-]{20,}"
    r"|\b(?:gh[oprsu]|github_pat|glpat|npm|shp[a-z]{2}|do[opr]_v1|sgp|r8|lin_api|rubygems|xox[a-z]|xapp|tskey|PMAK)"
    r"[_-](?=\D{0,40}\d)[\w-]{8,}"
    r"|\b(?:dckr_pat_|sq0[a-z]{3}-|pplx-)[\w-]{20,}"
    r"|\bAGE-SECRET-KEY-1[A-Z0-9]{20,}|\bNRAK-[A-Z0-9]{20,}|\bsbp_[0-9a-f]{40}|\bpat[A-Za-z0-9]{14}\.[0-9a-f]{64}"
    r"|\bLTAI(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{12,24}\b|\bAKID(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{32}\b"
    r"|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}:fx\b",
    "Asana Token": r"\b[0-2]/\d{10,20}(?:/\d{10,20})?:[0-9a-f]{32}\b",
    "Discord Webhook": r"\bdiscord(?:app)?\.com/api/webhooks/\d{5,30}/([\w-]{30,})",
    "OpenAI or Anthropic Key": r"\bsk-(?=\w{0,40}\d)\w{16,}[\w-]*|\bsk-(?:proj|ant|svcacct|or)-[\w-]{16,}",
    "Google Key": r"\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}|\bGOCSPX-[\w-]{20,}",
    "JSON Web Token": r"(?<![\w-])eyJ[\w-]{10,}\.[\w.-]+",
    "Private Key": r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END[A-Z -]*|\Z)",
}
FORMS = {kind: re.compile(pattern) for kind, pattern in PATTERNS.items()}
NOT_USED = ("Base64HighEntropyString", "HexHighEntropyString", "IPPublicDetector", "ArtifactoryDetector")
"""Detectors that take hashes, addresses and words in capitals for secrets."""
MINIMUM = 12  # characters of a secret with its label
PIECE, OVERLAP = 400, 200  # characters of a line that detectors search at once, some of them in quadratic time


@cache
def detectors() -> list[Any]:
    """The detectors of `detect-secrets` that know the form of a token or the name of its field."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class  # takes a second

    classes: Iterable[Any] = get_mapping_from_secret_type_to_class().values()
    return [cls() for cls in classes if cls.__name__ not in NOT_USED]


def secrets_in(text: str) -> Iterator[tuple[str, str]]:
    """The kind and the text of each secret in a text, without values of fields with a name like `api_key`."""
    if len(text) < MINIMUM:
        return
    for kind, pattern in FORMS.items():
        for match in pattern.finditer(text):
            yield kind, match[match.lastindex or 0]
    for line in text.splitlines():
        pieces = [line[start : start + PIECE] for start in range(0, max(1, len(line) - OVERLAP), PIECE - OVERLAP)]
        for piece, detector in product(pieces if len(line) >= MINIMUM else (), detectors()):
            for secret in detector.analyze_string(piece):
                if secret.strip("*") and secret[0] not in "<${":
                    yield detector.secret_type, secret


def first_secret(path: Path) -> tuple[str, str] | None:
    """The field or line of a file with a secret, and the kind of it.

    JSON files, the metadata of safetensors files and other files as lines of text are searched.
    """
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            places = _fields(file.metadata() or {}, "metadata")
    elif path.suffix == ".json":
        places = _fields(read_json(path), "")
    else:
        lines = path.read_bytes().decode("utf-8", "replace").splitlines()
        places = ((f"line {number}", line, False) for number, line in enumerate(lines, start=1))
    for place, text, named in places:
        kind = "by its name" if named else None
        if kind := next((kind for kind, _ in secrets_in(text)), kind):
            return place, kind
    return None


def _fields(value: Any, place: str) -> Iterator[tuple[str, str, bool]]:
    """The dotted field of each text in nested JSON values, the text, and whether it is named as a secret."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        inner = f"{place}.{name}" if place else str(name)
        yield f"a name in {place}", str(name), False
        if isinstance(entry, str):
            yield inner, entry, bool(re.fullmatch(SECRET_NAME, str(name)) and entry.strip("*"))
        yield from _fields(entry, inner)
