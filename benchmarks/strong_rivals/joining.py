"""Whether rows measured earlier, perhaps on other hardware, may stand beside rows measured now."""

from collections.abc import Mapping
from typing import Any

from benchmarks.fingerprints import same
from benchmarks.strong_rivals.measuring import Scene, steps_of_goals
from tenuto.errors import UsageError

NEAR = 0.1  # dB: how well a rival's recorded distance must come back
CHECKED = "UniPC 2"


def check_same_pictures(case: str, scene: Scene, rows: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprints of the pictures, and how it was seen that the rows are of the same pictures.

    Rows that were measured with a fingerprint are compared by it. For older rows one solver draws again at the settings
    that the file names, with the fewest evaluations, and must come to the recorded distances.
    """
    found = scene.fingerprints()
    if before := about.get("fingerprints"):
        if different := [goal for goal in found if not same(found[goal], before[goal])]:
            raise UsageError(
                f"The rows of {case} were measured on other pictures: the {different[0]} runs differ. Ask for the same "
                "--samples, or measure the rivals again (--again)."
            )
        return {"fingerprints": before, **({"check": about["check"]} if "check" in about else {})}
    return {"fingerprints": found, "check": drawn_again(case, scene, rows)}


def drawn_again(case: str, scene: Scene, rows: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A solver's recorded distances beside those that it comes to now."""
    counts = [count for count in sorted(rows, key=int) if CHECKED in rows[count]]
    if not counts:
        raise UsageError(f"The file holds no row of {CHECKED} for {case}, by which its rows could be checked.")
    recorded = rows[counts[0]][CHECKED]
    settings = {recorded[goal]["setting"] for goal in steps_of_goals()}
    checks = []
    for point in scene.rival(CHECKED, int(counts[0]), settings):
        for goal, one in scene.best([point])[CHECKED].items():
            if recorded[goal]["setting"] == point.setting:
                known = round(recorded[goal]["psnr"], 3)
                about = {"rival": CHECKED, "setting": point.setting, "evaluations": int(counts[0]), "goal": goal}
                checks.append({**about, "recorded": known, "found": round(one["psnr"], 3)})
    if wrong := [one for one in checks if abs(one["recorded"] - one["found"]) > NEAR]:
        raise UsageError(
            f"{case}: {CHECKED} comes to {wrong[0]['found']:.2f} dB where the file has {wrong[0]['recorded']:.2f}, so "
            "its rows are not of the same pictures. Ask for the same --samples, or measure the rivals again (--again)."
        )
    return checks
