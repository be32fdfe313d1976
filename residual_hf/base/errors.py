"""The error for bad user input, settings that raise it, and the exit codes of the command line."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from residual_hf.model.options import Settings, option

Value = TypeVar("Value")
Result = TypeVar("Result")

SHOWN = 10
"""Messages of several errors in one."""
FAILED, BAD_INPUT, DIVERGED, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 130, 141


class InputError(ValueError):
    """Bad input; names the field or file, the value and what is allowed. The command line exits with 2.

    Control characters of files and names are escaped, so that a message cannot write to the terminal around itself.
    """

    def __str__(self) -> str:
        return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in super().__str__())


def refuse_if(problems: Mapping[str, Any]) -> None:
    """Raise `InputError` with the first message whose condition holds."""
    for message, holds in problems.items():
        if holds:
            raise InputError(message)


def for_all(function: Callable[[Value], Result], values: Iterable[Value]) -> list[Result]:
    """The results of a function of each value. Raises one `InputError` for all values for which it raises one."""
    results, errors = [], dict[str, None]()
    for value in values:
        try:
            results.append(function(value))
        except InputError as error:
            errors[str(error)] = None  # once, if it is the same of all
    if errors:
        more = [f"and {len(errors) - SHOWN} more"] if len(errors) > SHOWN else []
        raise InputError("\n".join([*errors][:SHOWN] + more))
    return results


@contextmanager
def requires(extra: str) -> Iterator[None]:
    """Context of imports that need an optional extra of the package. Raises `InputError` naming it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is not installed: pip install 'residual_hf[{extra}]'") from error
    except ImportError as error:  # of another version
        raise InputError(f"{error}: pip install --upgrade 'residual_hf[{extra}]'") from error


@contextmanager
def input_errors(prefix: str, *kinds: type[Exception], named: bool = False) -> Iterator[None]:
    """Context in which errors of these kinds, an `InputError` if none is given, become one with a prefix.

    `named`: their messages say little without the name of their class, such as that of a `KeyError`.
    """
    caught = kinds or (InputError,)
    try:
        yield
    except caught as error:
        if kinds and isinstance(error, InputError):
            raise
        raise InputError(f"{prefix}{f'{type(error).__name__}: ' if named else ''}{error}") from error


def is_panic(error: BaseException) -> bool:
    """Whether a library in Rust, such as tokenizers, has failed; its error is not an `Exception`."""
    return type(error).__name__ == "PanicException"


class InputSettings(Settings):
    """Base class of the settings in a recipe: a value that is not allowed is an `InputError`."""

    error = InputError


def fields_of(kind: Any, names: str, default: Any = None, **bounds: Any) -> list[tuple[str, Any, Any]]:
    """Fields of the same type, default and bounds for `make_dataclass`; if the default is None, they may be None."""
    hint = kind | None if default is None else kind
    return [(name, hint, option(default, **bounds)) for name in names.split()]
