"""What a schedule says, as a few facts in words. Values are not escaped yet."""

from tenuto.scheduling.schedule import Schedule

ANY_WEIGHTS = "any of this layout (no weight was read to make the schedule)"
# For schedules of text: the positions that steps in between compute.
POSITIONS = {
    "written": "the positions written since the last full step",
    "block": "the positions of the block that is being written",
    "generated": "all positions that are to be written",
}


def schedule_facts(schedule: Schedule) -> dict[str, str]:
    facts = {
        "model": schedule.model,
        "policy": _policy(schedule),
        "steps": str(schedule.steps),
        "work": work(schedule),
        "predict": prediction(schedule),
    }
    if schedule.blocks > 1:
        facts["blocks of text"] = str(schedule.blocks)
    return {**facts, "weights": weights(schedule.fingerprint)}


def work(schedule: Schedule) -> str:
    """How much is computed."""
    full, steps = int(schedule.full_steps.sum()), schedule.steps
    if full == steps:
        return f"all {steps} steps compute everything"
    if schedule.rows != "none" and not together(schedule):
        return f"{schedule.budget:.1%} of unit-steps at all positions; the others at {POSITIONS[schedule.rows]}"
    if schedule.rows != "none":
        return f"{full} of {steps} steps compute everything; the others, {POSITIONS[schedule.rows]}"
    if together(schedule):
        return f"the network is evaluated at {full} of {steps} steps ({full / steps:.1%})"
    return f"{schedule.budget:.1%} of unit-steps, {schedule.flop_budget:.1%} of their FLOPs"


def share(schedule: Schedule) -> str:
    """How much of the steps is computed, for the end of a sentence about them."""
    if not together(schedule):
        return f"{schedule.budget:.0%} of the unit-steps computed"
    return f"{int(schedule.full_steps.sum())} of them " + ("evaluated" if schedule.rows == "none" else "in full")


def prediction(schedule: Schedule) -> str:
    """What is kept, and how the steps in between use it."""
    if schedule.active.all():
        return "nothing is predicted"
    if schedule.keep == "keys":
        return "keys and values of all other positions are read again"
    kept = {"output": "the network's output", "branch": "each branch before its gate", "update": "each unit's update"}
    how = "kept as it was" if schedule.predict == "constant" else f"{schedule.predict} extrapolation"
    return f"{kept[schedule.keep]}: {how}" + (", corrected at the next evaluation" if schedule.corrected else "")


def weights(fingerprint: str | None, length: int = 23) -> str:
    """Which weights a file belongs to."""
    if fingerprint is None:
        return ANY_WEIGHTS
    return fingerprint if len(fingerprint) <= length else f"{fingerprint[:length]}…"


def together(schedule: Schedule) -> bool:
    """Whether every step computes all units or none."""
    return bool((schedule.active == schedule.active[0]).all())


def _policy(schedule: Schedule) -> str:
    told = {key: value for key, value in schedule.policy.items() if isinstance(value, int | float) or key == "every"}
    said = [_parameter(key, value) for key, value in told.items() if value is not None]
    given = ", ".join(filter(None, said))
    return f"{schedule.policy.get('name', 'hand-made')}" + (f" ({given})" if given else "")


def _parameter(name: str, value: float | str) -> str:
    if isinstance(value, bool):
        return name if value else ""
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
