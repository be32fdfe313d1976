"""Requests and answers of LibreTranslate's API, with its messages for requests that are wrong."""

from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote_to_bytes

from fastapi import HTTPException, Request
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator
from starlette.requests import ClientDisconnect

from residual_hf.base.errors import InputError
from residual_hf.data.glossary import read_terms
from residual_hf.generation.checks import FLAGS

from .languages import Languages
from .server_settings import ServerSettings

DISCONNECTED = 499, "The client has disconnected"  # status of nginx, for the metrics
MAX_ALTERNATIVES = 5
MAX_TEXTS = 500  # in a list
MAX_TERMS = 1000  # of a glossary
CONTENT_TYPES = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")


def integral(value: Any) -> Any:
    """JSON has one type of number, and LibreTranslate reads text too: 2.0 and "2" are integers."""
    is_integral = value.is_integer() if isinstance(value, float) else isinstance(value, str) and value.isdecimal()
    return int(value) if is_integral else value


def terms(value: Any) -> Any:
    """The terms of a glossary, also those of lines, with their translations. Raises `InputError` for another one."""
    if isinstance(value, str):
        value = dict(reversed([*read_terms(value.splitlines(), "glossary")]))  # the first translation is preferred
    if not isinstance(value, dict):
        return value
    for row in value.items():
        if not all(isinstance(cell, str) and cell.strip() for cell in row):
            raise InputError(f"glossary: {list(row)!r:.80} given, must be a term and its translation")
    if len(value) > MAX_TERMS:
        raise InputError(f"glossary: {len(value)} terms given, must be at most {MAX_TERMS}")
    return {term.strip(): translation.strip() for term, translation in value.items()}


class DetectBody(BaseModel):
    q: str | list[str]
    api_key: str = ""

    @model_validator(mode="before")
    @classmethod
    def drop_empty(cls, values: Any) -> Any:
        """Fields that are empty or null are missing, as in LibreTranslate."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value not in (None, "", [])}


class TranslateBody(DetectBody):
    """`glossary`: terms and their translations; or lines of a term, a tab, a semicolon or a comma, and its
    translation."""

    source: str
    target: str
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES), BeforeValidator(integral)] = 0
    alignments: bool = False
    glossary: Annotated[dict[str, str], BeforeValidator(terms)] = {}

    @model_validator(mode="after")
    def align_text_only(self) -> "TranslateBody":
        if self.alignments and self.format == "html":
            raise ValueError("alignments: only with the format text")
        return self


class Error(BaseModel):
    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error} for status in (400, 403, 413, 415, 429, 500, 503, 504)
}


class Detection(BaseModel):
    confidence: float
    language: str


class Language(BaseModel):
    """`via`: the language in between, for the targets that no single model translates to."""

    code: str
    name: str
    targets: list[str]
    via: dict[str, str] | None = None


class TranslateAnswer(BaseModel):
    """Lists where `q` is a list.

    `route`: the languages of the models, if they are not those of the request; a list of routes only if texts have
    several. `scores`, `alignments` (pairs of a source and a target word, such as `0-0 1-2`) and `wordScores` (the
    probability of each word) are of the translation and of its alternatives.
    """

    translatedText: str | list[str]
    detectedLanguage: Detection | list[Detection] | None = None
    route: list[str] | list[list[str]] | None = None
    alternatives: list[str] | list[list[str]] | None = None
    scores: list[float] | list[list[float]] | None = None
    alignments: list[str] | list[list[str]] | None = None
    wordScores: list[list[float]] | list[list[list[float]]] | None = None
    flags: list[str] | list[list[str]] = Field(description=f"suspicions about the translation: {', '.join(FLAGS)}")


Body = TypeVar("Body", bound=DetectBody)


def documented(body: type[BaseModel], languages: Languages, settings: ServerSettings) -> dict[str, Any]:
    """Arguments of a route that describe its body, which `read` parses, and its errors."""
    form = body.model_json_schema()
    text = {"type": "string", "maxLength": settings.char_limit}
    texts = {"type": "array", "items": text, "maxItems": MAX_TEXTS}
    several = {"anyOf": [text, texts], "description": f"at most {settings.char_limit} characters together"}
    form["properties"]["q"] = text
    if body is TranslateBody:
        form["properties"]["source"]["enum"] = ["auto", *languages.sources]
        form["properties"]["target"]["enum"] = languages.targets
    json = form | {"properties": form["properties"] | {"q": several}}
    content = {name: {"schema": json if name == CONTENT_TYPES[0] else form} for name in CONTENT_TYPES}
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}, "responses": ERRORS}


async def read(request: Request, model: type[Body]) -> Body:
    """The JSON or form of a request, which its query completes; `HTTPException` names the wrong field."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type and content_type not in CONTENT_TYPES:
        raise HTTPException(415, f"Content-Type: {content_type!r} given, must be one of {', '.join(CONTENT_TYPES)}")
    query = dict(request.query_params)
    try:
        body = await request.body()  # which `finished` expects to be read
        unquote_to_bytes(request.scope["query_string"]).decode()  # Starlette replaces what is not UTF-8
        if content_type == "application/json":
            found = model.model_validate_json(body, strict=True)
            return found.model_copy(update={"api_key": query.get("api_key", "")}) if not found.api_key else found
        if content_type != "multipart/form-data" and body.lstrip().startswith(b"{"):
            raise HTTPException(400, f"Content-Type: {content_type or 'none'} given, application/json is that of JSON")
        (body if content_type == "multipart/form-data" else unquote_to_bytes(body)).decode()
        async with request.form(max_part_size=len(body)) as form:  # which `Guard` has limited
            if repeated := next((name for name in form if len(form.getlist(name)) > 1), ""):
                raise HTTPException(400, f"{repeated}: given more than once; several texts are a list in JSON")
            return model.model_validate(query | dict(form))
    except ValidationError as error:
        raise HTTPException(400, refusal(error)) from None
    except ClientDisconnect:
        raise HTTPException(*DISCONNECTED) from None
    except UnicodeError as error:
        raise HTTPException(400, f"body: {error}") from None


def refusal(error: ValidationError) -> str:
    """The message for a wrong request, in the words of LibreTranslate if it has them."""
    first = error.errors(include_url=False, include_context=False)[0]
    kind, field, value = first["type"], ".".join(str(part) for part in first["loc"][:1]), first["input"]
    if kind == "missing":
        return f"Invalid request: missing {field} parameter"
    if kind == "model_type":
        return "Invalid JSON format"
    if field == "format":
        return f"{value} format is not supported"
    if field == "alternatives":
        wrong = f"must be <= {MAX_ALTERNATIVES}" if kind == "less_than_equal" else "is not a number"
        return f"Invalid request: alternatives parameter {wrong}"
    if kind == "value_error":
        return first["msg"].removeprefix("Value error, ")
    return f"{field or 'body'}: {first['msg']}"
