"""Two schedules at once: a unit is computed where both compute it."""

from dataclasses import replace

from tenuto.errors import UsageError
from tenuto.scheduling.schedule import Schedule


def both(first: Schedule, second: Schedule) -> Schedule:
    """A unit is computed where both schedules compute it. The paper's Spectral + DeepCache is

        both(lifetimes(scores, steps), deep_cache_schedule(model, steps, every))

    Deep units are held at the steps that DeepCache skips. At the other steps, every unit is computed until its lifetime
    ends. Both schedules must be for the same model and steps, keep the same thing and predict it in the same way.
    """
    for name in ("units", "steps", "predict", "keep", "rows", "blocks"):
        mine, other = getattr(first, name), getattr(second, name)
        if mine != other:
            differ = "" if name == "units" else f": {mine!r} and {other!r}"
            raise UsageError(f"These schedules cannot be joined: their {name} differ{differ}.")
    weights = {one.fingerprint for one in (first, second)} - {None}
    if len(weights) > 1:
        raise UsageError("These schedules cannot be joined: they were made from different weights.")
    policy = {"name": "both", "first": first.policy, "second": second.policy}
    return replace(first, active=first.active & second.active, policy=policy, fingerprint=next(iter(weights), None))
