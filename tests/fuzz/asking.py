"""The command line of a fuzzer that is asked for a count and a seed."""

import argparse
import warnings
from collections.abc import Callable
from typing import Any


def ask(
    about: str, fuzz: Callable[[int, int], dict[str, Any]], line: Callable[[dict[str, Any]], str], count: int
) -> None:
    """Run a fuzzer, and print its line. count: by default"""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(line(fuzz(asked.count, asked.seed)))
