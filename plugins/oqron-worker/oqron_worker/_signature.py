"""The signature of a handler: what its payload must be."""

from __future__ import annotations

import inspect
import typing

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from oqron_core.exceptions import InvalidValueError
from oqron_worker._context import Context
from oqron_worker._convert import dump, load


__all__ = ["Signature"]

_EMPTY: Final = inspect.Parameter.empty
_KINDS: Final = frozenset({inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY})


@attrs.frozen
class _Parameter:
    """One part of a payload."""

    name: str
    hint: Any
    required: bool


def _hints(function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=dict(names))
    except NameError as error:
        msg = (
            f"the annotations of {function.__qualname__} cannot be read: {error}; classes "
            "of a payload must be importable where the handler is defined"
        )
        raise TypeError(msg) from error


class Signature:
    """
    Checks payloads against a function, both when they are added and when it is called.

    Args:
        function: The handler. A first parameter named ``ctx``, or annotated with
            `Context`, is given the context and is no part of the payload.
        whole: Whether the one other parameter takes the whole payload, whatever
            JSON it is. Otherwise a payload is an object with a field for each
            parameter.
        names: Further names that annotations may use.

    Raises:
        TypeError: The function cannot be a handler.
    """

    __slots__ = ("_by_name", "_parameters", "_whole", "context", "function")

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        whole: bool = False,
        names: Mapping[str, Any] | None = None,
    ) -> None:
        self.function = function
        hints = _hints(function, names or {})
        parameters = list(inspect.signature(function).parameters.values())
        first = parameters[0] if parameters else None
        self.context = first is not None and (
            first.name == "ctx" or hints.get(first.name) is Context
        )
        if self.context:
            del parameters[0]
        self._parameters = [self._checked(parameter, hints) for parameter in parameters]
        self._by_name = {parameter.name: parameter for parameter in self._parameters}
        self._whole = self._parameters[0] if whole and len(self._parameters) == 1 else None
        if whole and self._whole is None:
            msg = f"{function.__qualname__} must take one parameter: the whole payload"
            raise TypeError(msg)

    def _checked(self, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> _Parameter:
        if parameter.kind not in _KINDS:
            msg = f"{self.function.__qualname__}: a handler has named parameters only"
            raise TypeError(msg)
        return _Parameter(
            parameter.name, hints.get(parameter.name, Any), parameter.default is _EMPTY
        )

    @property
    def whole(self) -> bool:
        """Whether a payload is taken whole."""
        return self._whole is not None

    @property
    def names(self) -> frozenset[str]:
        """The parts of a payload; empty where it is taken whole."""
        return frozenset() if self._whole is not None else frozenset(self._by_name)

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """
        Make the payload of a call.

        Raises:
            InvalidValueError: A value is not what its annotation says; with its place.
            TypeError: An argument is missing, unknown or given twice.
        """
        if self._whole is not None:
            return self._pack_whole(self._whole, args, kwargs)
        name = self.function.__qualname__
        if len(args) > len(self._parameters):
            msg = f"{name} takes {len(self._parameters)} arguments, not {len(args)}"
            raise TypeError(msg)
        given = {p.name: value for p, value in zip(self._parameters, args, strict=False)}
        for key in kwargs:
            if key in given:
                msg = f"{name} got {key!r} twice"
                raise TypeError(msg)
            if key not in self._by_name:
                msg = f"{name} has no parameter {key!r}"
                raise TypeError(msg)
        given.update(kwargs)
        missing = [p.name for p in self._parameters if p.required and p.name not in given]
        if missing:
            msg = f"{name} needs {', '.join(missing)}"
            raise TypeError(msg)
        return {key: dump(value, self._by_name[key].hint, key) for key, value in given.items()}

    def _pack_whole(
        self, whole: _Parameter, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        if len(args) + len(kwargs) != 1 or not (args or whole.name in kwargs):
            msg = f"{self.function.__qualname__} takes one argument, {whole.name!r}"
            raise TypeError(msg)
        return dump(args[0] if args else kwargs[whole.name], whole.hint, whole.name)

    def check(self, data: Any) -> Any:
        """
        Check a payload that is JSON already, and give it back.

        Raises:
            InvalidValueError: The handler could not be called with it.
        """
        self.unpack(data)
        return data

    def unpack(self, data: Any) -> dict[str, Any]:
        """
        Make the arguments of a call from a payload.

        Raises:
            InvalidValueError: The payload does not fit; says where.
        """
        if self._whole is not None:
            return {self._whole.name: load(data, self._whole.hint, self._whole.name)}
        if data is None:
            data = {}
        if not isinstance(data, dict):
            raise InvalidValueError("data", f"must be an object, not {type(data).__name__}")
        for key in data:
            if key not in self._by_name:
                raise InvalidValueError(f"data.{key}", "the handler has no such parameter")
        arguments = {}
        for parameter in self._parameters:
            if parameter.name in data:
                arguments[parameter.name] = load(
                    data[parameter.name], parameter.hint, f"data.{parameter.name}"
                )
            elif parameter.required:
                raise InvalidValueError(f"data.{parameter.name}", "is missing")
        return arguments
