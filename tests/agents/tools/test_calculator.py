from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentapp.agents.provider import ToolCall
from agentapp.agents.tool import ToolContext, ToolInputError
from agentapp.agents.tools.calculator import MAX_EXPRESSION_CHARS, WORKING_DIGITS, calculate, evaluate
from agentapp.isolation import Scope

# A loaded machine is no failure.
unhurried = settings(deadline=None)

CONTEXT = ToolContext(Scope(request_id="r", tenant_id="t", user_id="u", session_id="s"))


def told(expression: str) -> str:
    return str(calculate.call(CONTEXT, ToolCall("1", "calculate", {"expression": expression})))


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("17*23", "17*23 = 391"),
        ("0.1+0.2", "0.1+0.2 = 0.3"),
        (" 1 + 1 ", "1 + 1 = 2"),
        ("6×7÷2−1", "6×7÷2−1 = 20"),
        ("2**10", "2**10 = 1024"),
        ("1/3", "1/3 ≈ 0.33333333333333333333"),
        ("1e900", "1e900 = 1e+900"),
        ("-0", "-0 = 0"),
    ],
)
def test_answer_repeats_the_expression_and_says_whether_it_is_exact(expression: str, answer: str) -> None:
    assert told(expression) == answer


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2+3*4", "14"),
        ("2*3+4", "10"),
        ("10-4-3", "3"),
        ("100/10/2", "5"),
        ("2^3^2", "512"),
        ("-2^2", "-4"),
        ("2^-1", "0.5"),
        ("2*-3", "-6"),
        ("--3", "3"),
        ("(1+2)*3", "9"),
        ("-7//2", "-4"),
        ("-7 % 3", "2"),
        ("7 mod -3", "-2"),
        ("5! / 3!", "20"),
        (".5 + 5.", "5.5"),
        ("2e3 + 1", "2001"),
        ("1,234.5 * 2", "2469"),
        ("1,234,567", "1234567"),
        ("max(1,234)", "234"),
        ("max((1,234), 5)", "1234"),
        ("0^0", "1"),
        ("MAX(3, 1, 2)", "3"),
    ],
)
def test_operators_bind_as_in_school(expression: str, value: str) -> None:
    assert str(evaluate(expression)) == value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("15% of 80", "12"),
        ("80 * 15%", "12"),
        ("200 + 10%", "220"),
        ("200 - 10%", "180"),
        ("200 - -10%", "220"),
        ("50% + 10%", "0.6"),
        ("200 + 10% of 50", "205"),
        ("100 / 20% of 50", "10"),
        ("10 % 3", "1"),
        ("10% - 3", "-2.9"),
        ("(10%)", "0.1"),
    ],
)
def test_percentages_mean_what_the_description_says(expression: str, value: str) -> None:
    assert str(evaluate(expression)) == value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("sqrt(16)", "4"),
        ("abs(-3.5)", "3.5"),
        ("round(2.5)", "3"),
        ("round(-2.345, 2)", "-2.35"),
        ("round(1234, -2)", "1200"),
        ("floor(-2.5)", "-3"),
        ("ceil(2.1)", "3"),
        ("min(3, -1, 2)", "-1"),
        ("factorial(20)", "2432902008176640000"),
        ("log(1000)", "3"),
        ("log10(0.01)", "-2"),
        ("exp(0)", "1"),
        ("2^200", str(2**200)),
        ("factorial(100)", str(math.factorial(100))),
    ],
)
def test_functions_with_an_exact_answer_give_it(expression: str, value: str) -> None:
    answer = evaluate(expression)
    assert (str(answer), answer.exact) == (value, True)


@pytest.mark.parametrize(
    "expression", ["sin(pi)", "cos(pi/2)", "sin(3*pi)", "sin(-200*pi)", "exp(1) - e", "tan(0)"]
)
def test_rounding_does_not_show_where_the_answer_is_zero(expression: str) -> None:
    assert str(evaluate(expression)) == "0"


@pytest.mark.parametrize("name", ["sin", "cos", "tan", "exp"])
@unhurried
@given(x=st.decimals(-30, 30, places=3))
def test_functions_agree_with_the_standard_library(name: str, x: Decimal) -> None:
    expected = getattr(math, name)(float(x))
    assert float(evaluate(f"{name}({x})").value) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@unhurried
@given(x=st.decimals("0.001", "1000", places=3), base=st.sampled_from([2, 3, 7]))
def test_logarithms_agree_with_the_standard_library(x: Decimal, base: int) -> None:
    assert float(evaluate(f"ln({x})").value) == pytest.approx(math.log(x), abs=1e-12)
    assert float(evaluate(f"log({x}, {base})").value) == pytest.approx(math.log(x, base), abs=1e-12)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "the expression is empty"),
        ("2+", "expected a number but found the end at position 3"),
        ("2 3", "expected an operator but found '3' at position 3"),
        ("2pi", "expected an operator but found 'pi' at position 2"),
        ("(2", "expected a closing bracket but found the end at position 3"),
        ("2)", "expected an operator but found ')' at position 2"),
        ("1/0", "division by zero at position 2"),
        ("0/0", "division by zero at position 2"),
        ("5 // (1-1)", "division by zero at position 3"),
        ("5 mod 0", "division by zero at position 3"),
        ("0^-1", "division by zero at position 2"),
        ("1 + sqrt(-1)", "sqrt takes no negative numbers at position 5"),
        ("ln(0)", "a logarithm takes numbers above zero at position 1"),
        ("(-8)^0.5", "this has no real result that can be written down at position 5"),
        ("tan(pi/2)", "tan has no value here at position 1"),
        ("1.5!", "factorial takes whole numbers from 0 to 1000 at position 4"),
        ("1001!", "factorial takes whole numbers from 0 to 1000 at position 5"),
        ("sqrt(1,234)", "sqrt does not take 2 arguments (a comma separates them) at position 1"),
        ("round(1, 0.5)", "round takes whole places from -400 to 400 at position 1"),
        ("sin(1e101)", "an angle may be at most 1E+100 at position 1"),
        ("sqrt 4", "expected a bracket after sqrt but found '4' at position 6"),
        ("2 $ 3", "'$' is not understood at position 3"),
        ("٣ + 1", "'٣' is not understood at position 1"),
    ],
)
def test_what_has_no_answer_is_told_with_its_place(expression: str, problem: str) -> None:
    with pytest.raises(ToolInputError) as caught:
        evaluate(expression)
    assert str(caught.value) == problem


@pytest.mark.parametrize("expression", ["3,5 + 1", "1,23", "1234,567", "1,234,56", "(1,2)"])
def test_ambiguous_comma_is_refused(expression: str) -> None:
    with pytest.raises(ToolInputError, match="the comma fits neither"):
        evaluate(expression)


@pytest.mark.parametrize("expression", ["__import__('os')", "open(1)", "(1).real", "[1]", "lambda: 1", "a=1"])
def test_nothing_but_arithmetic_is_understood(expression: str) -> None:
    with pytest.raises(ToolInputError):
        evaluate(expression)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("9^9^9^9", "too large"),
        ("9**9**9**9", "too large"),
        ("(1+1e-80)^1e300", "too large"),
        ("exp(99999)", "too large"),
        ("1e99999", "too large"),
        ("0.1^99999", "too close to zero"),
        ("exp(" * 39 + "1" + ")" * 39, "too large"),
        ("(" * 60 + "1" + ")" * 60, "nested more than 40 deep"),
        ("-" * 400 + "1", "nested more than 40 deep"),
        ("2^" * 200 + "1", "nested more than 40 deep"),
        ("1+" * 250 + "1", "at most 500 are allowed"),
        ("9" * 1_000, "at most 500 are allowed"),
    ],
)
def test_hostile_expression_is_refused_at_once(expression: str, problem: str) -> None:
    with pytest.raises(ToolInputError, match=problem):
        evaluate(expression)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("costly", ["2^.5*", "sin(9e99)+", "pi+", "log(7,3)+", "1000!-"])
def test_dearest_expression_of_full_length_is_still_answered(costly: str) -> None:
    assert evaluate(costly * ((MAX_EXPRESSION_CHARS - 1) // len(costly)) + "1").value


@unhurried
@given(st.text(alphabet="0123456789.,+-*/^%!() eEpiofmdsqrtmaxlnog×÷", max_size=60))
def test_any_text_has_an_answer_or_a_sentence(text: str) -> None:
    try:
        value = evaluate(text).value
    except ToolInputError:
        return
    assert value.is_finite()


@dataclass(frozen=True)
class Tree:
    """An expression as text, how tightly its outermost operator binds, and what Fractions make of it."""

    text: str
    binding: int
    value: Fraction

    def within(self, binding: int) -> str:
        return self.text if self.binding >= binding else f"({self.text})"


def leaf(number: Decimal) -> Tree:
    return Tree(f"{number:f}", 5, Fraction(number))


def negated(tree: Tree) -> Tree:
    return Tree(f"-{tree.within(3)}", 3, -tree.value)


def joined(sign: str, binding: int, left: Tree, right: Tree) -> Tree:
    compute = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
    compute |= {"//": operator.floordiv, "%": operator.mod}
    assume(right.value or sign not in ("/", "//", "%"))
    shown = right.within(binding + 1)
    # A sign after "%" would make it a percentage, as documented.
    shown = f"({shown})" if sign == "%" and shown.startswith("-") else shown
    value = Fraction(compute[sign](left.value, right.value))
    return Tree(f"{left.within(binding)} {sign} {shown}", binding, value)


def raised(tree: Tree, exponent: int) -> Tree:
    return Tree(f"{tree.within(5)}^{exponent}", 4, tree.value**exponent)


def trees(*signs: str) -> st.SearchStrategy[Tree]:
    binding = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2}
    numbers = st.decimals(0, 9999, places=3) | st.integers(0, 99).map(Decimal)

    def grown(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        operations = [st.builds(joined, st.just(s), st.just(binding[s]), inner, inner) for s in signs]
        return st.one_of(*operations, st.builds(negated, inner), st.builds(raised, inner, st.integers(0, 3)))

    return st.recursive(numbers.map(leaf), grown, max_leaves=8)


@unhurried
@given(trees("+", "-", "*", "//", "%"))
def test_exact_arithmetic_equals_fractions(tree: Tree) -> None:
    assume(len(tree.text) <= MAX_EXPRESSION_CHARS and abs(tree.value.numerator) < 10 ** (WORKING_DIGITS // 2))
    answer = evaluate(tree.text)
    assert Fraction(answer.value) == tree.value
    assert Fraction(Decimal(str(answer))) == tree.value


@unhurried
@given(trees("+", "-", "*", "/"))
def test_division_is_right_to_a_hundred_digits(tree: Tree) -> None:
    assume(len(tree.text) <= MAX_EXPRESSION_CHARS and abs(tree.value) < 10**100)
    error = abs(Fraction(evaluate(tree.text).value) - tree.value)
    assert error <= Fraction(1, 10**100) * max(1, abs(tree.value))
