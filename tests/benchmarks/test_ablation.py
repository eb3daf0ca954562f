"""The benchmark that takes the default apart, on a network made here: every row is changed as it says."""

from pathlib import Path

from benchmarks import ablation


def test_every_row_changes_what_it_says_and_the_table_has_them_all(checkpoint: Path) -> None:
    rows = ablation.measure(str(checkpoint), samples=1, seeds=2, device="cpu")
    work = {row["way"]: round(50 * row["work"]) for row in rows}
    assert work["every third step, every branch held as it was"] == 17
    assert work["the default at a quarter"] == work["every branch held instead of the output"] == 12
    assert work["evaluations spread evenly over the steps"] == work["linear"] == work["cubic"] == 12
    assert work["every fourth step instead"] == 13
    made = dict.fromkeys(("command", "commit", "torch", "hardware", "date"), "…")
    record = {"provenance": made, "samples": 1, "seeds": 2, "networks": {"toy": rows}}
    table = ablation.table(record)
    assert table.count("dB") == 1 and all(f"| {way} |" in table for way in ablation.WAYS)
    assert rows[3]["low"] <= rows[3]["psnr"] <= rows[3]["high"]
