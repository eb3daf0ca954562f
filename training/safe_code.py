"""Runs small pieces of Python that a model wrote, without exec: a walk over the syntax tree that knows integers only.

The language has integer variables, + - * // %, one comparison, `if`/`else` and `return`. It has no loops, no calls and
no attributes, so a program always ends, and it can reach nothing outside its own variables.
"""

import ast
import operator
from collections.abc import Callable, Sequence

LARGEST = 10**12  # of any value: a program that multiplies on and on is stopped
LONGEST = 4000  # letters of a program
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
Variables = dict[str, int]


class CodeError(Exception):
    """The program is no program, goes beyond the language, or fails while it runs."""


def run_function(source: str, arguments: Sequence[int]) -> int:
    """What the one function in `source` returns for these arguments."""
    body = _parsed(source)
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        raise CodeError("the source is not one function")
    function = body[0]
    shape, names = function.args, [each.arg for each in function.args.args]
    if shape.posonlyargs or shape.kwonlyargs or shape.vararg or shape.kwarg or shape.defaults:
        raise CodeError("only plain parameters are known")
    if function.decorator_list or len(names) != len(arguments):
        raise CodeError(f"the function takes {len(names)} arguments, not {len(arguments)}")
    result = _ran(function.body, dict(zip(names, arguments, strict=True)))
    if result is None:
        raise CodeError("the function returns nothing")
    return result


def _parsed(source: str) -> list[ast.stmt]:
    if len(source) > LONGEST:
        raise CodeError("the source is too long")
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CodeError(f"the source is no Python: {error}") from error


def _ran(statements: Sequence[ast.stmt], variables: Variables) -> int | None:
    """What `_run` gives. How deep an expression may be nested depends on how deep the caller is."""
    try:
        return _run(statements, variables)
    except RecursionError as error:
        raise CodeError("the source is nested too deeply") from error


def _run(statements: Sequence[ast.stmt], variables: Variables) -> int | None:
    """Runs statements in place; the value of the first `return` reached, or None."""
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                variables[name] = _value(value, variables)
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                old = _value(ast.Name(target.id, ast.Load()), variables)
                variables[name] = _applied(op, old, _value(value, variables))
            case ast.Return(value=ast.expr() as value):
                return _value(value, variables)
            case ast.If(test=test, body=body, orelse=otherwise):
                result = _run(body if _holds(test, variables) else otherwise, variables)
                if result is not None:
                    return result
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                pass
            case _:
                raise CodeError(f"{type(statement).__name__} is not in the language")
    return None


def _value(expression: ast.expr, variables: Variables) -> int:
    match expression:
        case ast.Constant(value=int() as number) if not isinstance(number, bool) and abs(number) <= LARGEST:
            return number
        case ast.Name(id=name):
            if name not in variables:
                raise CodeError(f"{name} has no value")
            return variables[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _applied(op, _value(left, variables), _value(right, variables))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, variables)
        case _:
            raise CodeError(f"{type(expression).__name__} is not in the language")


def _applied(op: ast.operator, left: int, right: int) -> int:
    if type(op) not in OPERATORS:
        raise CodeError(f"{type(op).__name__} is not in the language")
    try:
        result = OPERATORS[type(op)](left, right)
    except ZeroDivisionError as error:
        raise CodeError("division by zero") from error
    if abs(result) > LARGEST:
        raise CodeError("a value is too large")
    return result


def _holds(test: ast.expr, variables: Variables) -> bool:
    match test:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            return COMPARISONS[type(op)](_value(left, variables), _value(right, variables))
        case _:
            raise CodeError("a condition is one comparison")
