"""Settings are documented where `help` and editors show them, each once, inherited ones included."""

import ast
import dataclasses
import inspect
import textwrap

import pytest

import posterity
from posterity.core import docstrings, records, types
from posterity.inference.methods import card, method
from posterity.metrics.scores import Score
from posterity.posterior.receipt import Receipt


def fields(cls: type) -> list[str]:
    named = getattr(cls, "_fields", ())
    return list(named) or [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]


def has_fields(value: object) -> bool:
    return isinstance(value, type) and (dataclasses.is_dataclass(value) or hasattr(value, "_fields"))


PUBLIC = {name: value for name in posterity.__all__ if has_fields(value := getattr(posterity, name))}
PUBLIC |= {cls.__name__: cls for cls in (Receipt, types.Batch, types.Clock, types.Kernel, types.Phase)}
INTERNAL = (card.Card, card.TableSize, method.Execution, method.Method, method.Result, Score)


@records.record
class Parent:
    """A parent.

    Args:
        first: What comes first,
            over two lines.
        second: What comes second.

    Examples:
        Follow here.
    """

    first: int = 1
    second: int = 2


@records.record
class Child(Parent):
    """A child.

    Args:
        third: What comes third.
        second: Another second.
    """

    second: int = 3
    third: int = 4


@records.record
class Heir(Child):
    """An heir, without settings of its own."""


@records.record
class Nameless(Child):
    pass


def documented_below(cls: type) -> set[str]:
    """Fields of a class that a string follows."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        ast.unparse(field.target)
        for field, after in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_class_documents_each_of_its_fields(name):
    missing = [field for field in fields(PUBLIC[name]) if field not in docstrings.entries(PUBLIC[name].__doc__)]
    assert not missing, f"{name}: no entry under Args for {', '.join(missing)}"
    assert list(docstrings.entries(PUBLIC[name].__doc__)) == fields(PUBLIC[name])


@pytest.mark.parametrize("cls", INTERNAL)
def test_an_internal_class_documents_each_of_its_fields(cls):
    documented = documented_below(cls) | set(docstrings.entries(cls.__doc__))
    assert {name for name in inspect.get_annotations(cls) if name not in documented} == set()


def test_a_record_lists_inherited_settings_once_in_the_order_of_its_fields():
    expected = {"first": "What comes first, over two lines.", "second": "Another second.", "third": "What comes third."}
    for cls in (Child, Heir, Nameless):
        assert list(docstrings.entries(cls.__doc__).items()) == list(expected.items())
    assert str(Heir.__doc__).startswith("An heir, without settings of its own.\n\nArgs:\n    first: What")


def test_what_follows_the_settings_stays():
    assert docstrings.entries(Parent.__doc__)["second"] == "What comes second."
    assert str(Parent.__doc__).endswith("Examples:\n    Follow here.")


def test_an_entry_that_names_no_field_is_seen():
    @records.record
    class Renamed(Parent):
        """A class whose field was renamed.

        Args:
            former: What was called so before.
        """

    assert list(docstrings.entries(Renamed.__doc__)) == ["first", "second", "former"]


def test_what_documents_nothing_has_no_entries():
    assert docstrings.entries(None) == docstrings.entries("Args are described elsewhere.") == {}
