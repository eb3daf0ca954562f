"""The README is a front page: short, the one call first, and its figures are those of the results.

That its Python runs and its links lead somewhere is seen to with the other pages (tests/test_docs.py).
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_a_front_page() -> None:
    assert len(README.splitlines()) <= 160
    assert "make demo" in README and "make test" in README
    assert README.index("tenuto.enable(pipe, budget=0.25)") < README.index("tenuto.load(")


def test_the_headline_table_has_the_figures_of_the_results() -> None:
    measured = {
        row["row"]: row for row in json.loads((ROOT / "results/readme/readme.json").read_text(encoding="utf-8"))["rows"]
    }
    table = README.split("<!-- headline: benchmarks/readme.py -->")[1].split("<!-- end of headline -->")[0]
    rows = re.findall(r"^\| (.*) \|$", table.replace("**", ""), flags=re.MULTILINE)[2:]
    assert len(rows) >= 8
    for line in rows:
        name, work, seconds, speedup, near, worst = (cell.strip() for cell in line.split("|"))
        row = measured[name]
        assert (work, seconds) == (f"{row['work']:.0%}", f"{row['seconds']:.1f}"), name
        assert speedup == f"{row['speedup']:.2f}×", name
        assert near == ("" if row["psnr"] is None else f"{row['psnr']:.1f} dB"), name
        assert worst == ("" if row["psnr_worst"] is None else f"{row['psnr_worst']:.1f} dB"), name
