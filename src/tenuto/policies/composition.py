"""Two schedules at once: a unit is computed where both compute it."""

from dataclasses import replace

from tenuto.errors import UsageError
from tenuto.schedules import Schedule


def both(first: Schedule, second: Schedule) -> Schedule:
    """Computed where both compute it, held where either holds it: the paper's Spectral + DeepCache is

        both(lifetimes(scores, steps), deep_cache_schedule(model, steps, every))

    Deep units are held at the steps that DeepCache skips, and at the others every unit is computed while its lifetime
    lasts. Both schedules must be for the same model and steps, and hold the same thing in the same way.
    """
    for name in ("units", "steps", "fingerprint", "reuse", "hold", "rows"):
        mine, other = getattr(first, name), getattr(second, name)
        if mine != other:
            differ = "" if name == "units" else f": {mine!r} and {other!r}"
            raise UsageError(f"These schedules cannot be joined, for their {name} differ{differ}.")
    policy = {"name": "both", "first": first.policy, "second": second.policy}
    return replace(first, active=first.active & second.active, policy=policy)
