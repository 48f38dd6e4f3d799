"""Answers of a model, judged by code that was not written for hostile ones.

Some scorers evaluate the answer as Python, or let SymPy do it, which is the same. Their source tells which.
Such a scorer sees an answer only if that is plain: numbers, lists of them, or arithmetic with known
functions, and nothing that runs code, calls methods or builds something huge. A text that is no Python at all
cannot run either, unless SymPy rewrites it first.
"""

from __future__ import annotations

import ast
import inspect
import resource
import signal
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

_MAX_CHARACTERS: Final = 2000
_MAX_INTEGER: Final = 10**15
_MAX_EXPONENT: Final = 100
_MAX_POWER_DEPTH: Final = 2
_PYTHON: Final = frozenset({"eval", "exec", "compile"})
_SYMPY: Final = frozenset({"parse_expr", "sympify", "S", "parse_latex"})
_FUNCTIONS: Final = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "sec",
        "csc",
        "cot",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "exp",
        "log",
        "ln",
        "sqrt",
        "Abs",
    ]
)
_ARITHMETIC: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_SIGNS: Final = (ast.UAdd, ast.USub)
_SPARE_BYTES: Final = 512 << 20


Evaluator = Literal["", "python", "sympy"]
"""What a scorer evaluates answers with, if with anything."""


class TookTooLongError(BaseException):
    """Raised in a scorer that uses up its time; not an Exception, since scorers catch those."""


def is_plain(answer: str) -> bool:
    """Tell whether an answer may be evaluated.

    Example:
        >>> is_plain("(3+5)*3"), is_plain("[[1, 0], [0, 1]]"), is_plain("x**3/3 + sin(x)")
        (True, True, True)
        >>> is_plain("__import__('os').system('touch canary')"), is_plain("9**9**9**9")
        (False, False)
    """
    if len(answer) > _MAX_CHARACTERS:
        return False
    try:
        tree = ast.parse(answer.strip(), mode="eval")
        return _is_value(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def may_run(answer: str, evaluator: Evaluator) -> bool:
    """Tell whether an evaluator might run code, or forever, if it were given an answer.

    Example:
        >>> may_run("Q _ _ _", "python"), may_run("f()", "python"), may_run("f()", "")
        (False, True, False)
    """
    if not evaluator or is_plain(answer):
        return False
    return evaluator == "sympy" or len(answer) > _MAX_CHARACTERS or _parses(answer)


def evaluator_of(scorer: Callable[..., Any]) -> Evaluator:
    """Tell from a scorer's source what it may evaluate answers with.

    Follows calls within the scorer's own module, by name; anything that cannot be ruled out counts.

    Args:
        scorer: A function, or a method of a class or of an instance.
    """
    function = inspect.unwrap(getattr(scorer, "__func__", scorer))
    module = inspect.getmodule(function)
    source = inspect.getsource(module) if module else textwrap.dedent(inspect.getsource(function))
    bodies = {node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
    seen: set[str] = set()
    frontier = {function.__name__}
    while frontier:
        # A module may define its own, harmless function with the name of an evaluator.
        seen |= frontier
        frontier = {name for body in frontier & bodies.keys() for name in _called(bodies[body])} - seen
    foreign = seen - bodies.keys()
    return "sympy" if foreign & _SYMPY else "python" if foreign & _PYTHON else ""


def limited(call: Callable[[], float], cpu_s: float) -> float:
    """Return the result of a call that may use so much processor time and some memory, or raise.

    For the main thread of a worker process: uses SIGPROF and lowers the limit of the address space meanwhile.

    Args:
        call: What is limited.
        cpu_s: Processor time, seconds.

    Raises:
        TookTooLongError: It used more time.
        MemoryError: It needed more than 512 MiB.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _address_space_bytes() + _SPARE_BYTES
    before = signal.signal(signal.SIGPROF, _raise)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))
        # Again and again, in case the first one is caught.
        signal.setitimer(signal.ITIMER_PROF, cpu_s, cpu_s / 10)
        return call()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _raise(*_: object) -> None:
    raise TookTooLongError


def _address_space_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _called(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        # A function that is handed on, to `map` for instance, counts as called.
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _parses(answer: str) -> bool:
    try:
        ast.parse(answer.strip(), mode="eval")
    except SyntaxError:
        return False
    except (ValueError, RecursionError, MemoryError):
        return True
    return True


def _is_value(node: ast.expr) -> bool:
    if isinstance(node, ast.List | ast.Tuple):
        return all(map(_is_value, node.elts))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return True
    return _is_expression(node, _MAX_POWER_DEPTH)


def _is_expression(node: ast.expr, powers: int) -> bool:
    """Tell whether a node is arithmetic in which powers nest no deeper than that."""
    match node:
        case ast.Constant(value=bool() | None):
            return True
        case ast.Constant(value=int() | float() as number):
            return abs(number) <= _MAX_INTEGER
        case ast.Name(id=name):
            return len(name) <= 2 or name == "pi"
        case ast.UnaryOp(op=op, operand=operand):
            return isinstance(op, _SIGNS) and _is_expression(operand, powers)
        case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
            return powers > 0 and _is_expression(base, powers - 1) and _is_exponent(exponent)
        case ast.BinOp(left=left, op=op, right=right):
            known = isinstance(op, _ARITHMETIC)
            return known and _is_expression(left, powers) and _is_expression(right, powers)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return name in _FUNCTIONS and all(_is_expression(argument, powers) for argument in arguments)
    return False


def _is_exponent(node: ast.expr) -> bool:
    """Tell whether a node is arithmetic without powers or functions, of small numbers."""
    small = all(
        abs(part.value) <= _MAX_EXPONENT
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, int | float)
    )
    products = sum(isinstance(part, ast.Mult) for part in ast.walk(node))
    return small and products <= 1 and _is_expression(node, 0)
