r"""Whether the answer in \boxed{} is the expected one, however it is written, as in the evaluation of MATH.

The rules are those of the published `is_equiv` (Hendrycks et al.): spaces, \left and \right, units in \text{}, degrees,
dollars and percents do not count; \dfrac, \frac12 and 1/2 are \frac{1}{2}; .5 is 0.5; x=2 is 2. Beyond these rules, an
answer that stands as a whole in \text{} is that text, and numbers are compared as numbers: 2.0 is 2, 1,000 is 1000.
"""

import re
from collections.abc import Sequence
from decimal import Decimal

NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?")
DROPPED = ("\\left", "\\right", "^\\circ", "^{\\circ}", "\\$", "$", "\\%", "%", "\\!", "\\,", "\\;", "\\ ", "~")
WHOLE = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
UNITS = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}(?:\^\{?\d\}?)?$")


def boxed(output: str, answers: Sequence[str]) -> float:
    """Whether the last box of the output holds one of these answers."""
    found = last_boxed(output)
    return float(found is not None and plain(found) in [plain(answer) for answer in answers])


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{…}, whose braces may be nested; None if there is none that closes."""
    begins = text.rfind("\\boxed{") + len("\\boxed{")
    if begins < len("\\boxed{"):
        return None
    depth = 1
    for place in range(begins, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if not depth:
            return text[begins:place]
    return None


def plain(answer: str) -> str:
    """One spelling for all ways to write an answer."""
    text = answer.strip().rstrip(".").strip()
    text = whole[1] if (whole := WHOLE.fullmatch(text)) else UNITS.sub("", text)
    for one in DROPPED:
        text = text.replace(one, "")
    text = re.sub(r"\s+", "", text).replace("{,}", ",")
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = re.sub(r"\\frac(\w)(\w)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac(\w)\{", r"\\frac{\1}{", text)
    text = re.sub(r"(\\frac\{[^{}]*\})(\w)", r"\1{\2}", text)
    text = re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", text)
    text = re.sub(r"^[a-zA-Z]{1,2}=", "", text)
    text = re.sub(r"(?<!\d)\.(\d)", r"0.\1", text)
    if found := re.fullmatch(r"(-?\d+)/(\d+)", text):
        text = f"\\frac{{{found[1]}}}{{{found[2]}}}"
    if text.removeprefix("-") == "0.5":  # the one decimal that the published rules turn into a fraction
        text = text.replace("0.5", "\\frac{1}{2}")
    text = text.replace("\\frac{-", "-\\frac{")
    return f"{Decimal(text.replace(',', '')).normalize():f}" if NUMBER.fullmatch(text) else text
