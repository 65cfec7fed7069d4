"""Reading the program that JAX traces of a network: its equations in one list, calls written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")
CUSTOM_CALLS = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
RESHAPES = ("reshape", "squeeze", "expand_dims")


class Step(NamedTuple):
    """An equation of the traced program; values are numbered."""

    equation: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Inliner:
    """Writes a program out as one list of steps, looking into calls."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.constants: dict[int, Any] = {}
        self.weights: set[int] = set()  # values that are weights, perhaps reshaped
        self.count = 0

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def constant(self, value: Any) -> int:
        number = self.new()
        self.constants[number] = value
        return number

    def inline(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[int]) -> list[int]:
        numbers: dict[Any, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        numbers.update((var, self.constant(value)) for var, value in zip(jaxpr.constvars, constants, strict=True))

        def number(atom: Any) -> int:
            return self.constant(atom.val) if hasattr(atom, "val") else numbers[atom]

        for equation in jaxpr.eqns:
            inputs = tuple(map(number, equation.invars))
            inner = self._inner(equation, inputs)
            if inner is None:
                outputs = tuple(self.new() for _ in equation.outvars)
                self.steps.append(Step(equation, inputs, outputs))
                if moves_only(equation) and inputs[0] in self.weights:
                    self.weights.update(outputs)
            else:
                body = getattr(inner, "jaxpr", inner)
                outputs = self.inline(body, getattr(inner, "consts", ()), inputs)
            numbers.update(zip(equation.outvars, outputs, strict=True))
        return [number(atom) for atom in jaxpr.outvars]

    def _inner(self, equation: Any, inputs: Sequence[int]) -> Any:
        name = equation.primitive.name
        # A custom derivative is lost by looking inside, so only where a weight goes in.
        wanted = name in CALLS or (name in CUSTOM_CALLS and any(i in self.weights for i in inputs))
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr")) if wanted else None
        return inner if inner is not None and hasattr(getattr(inner, "jaxpr", inner), "eqns") else None


def moves_only(equation: Any) -> bool:
    return equation.primitive.name in ("transpose", "convert_element_type", "copy", "broadcast_in_dim", *RESHAPES)


def evaluate(equation: Any, values: Sequence[Any]) -> list[Any]:
    """What an equation of a traced program makes of these values."""
    with equation.ctx.manager:
        made = equation.primitive.bind(*values, **equation.primitive.get_bind_params(equation.params))
    return list(made) if equation.primitive.multiple_results else [made]
