"""Parameter types whose values are one word of a command line."""

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import click

_T = TypeVar("_T")


class Word(click.ParamType[_T], ABC):
    """Parameter type of one word."""

    @abstractmethod
    def read(self, text: str) -> _T:
        """The value. Raises ValueError with what is wrong with the word."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _T:
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
