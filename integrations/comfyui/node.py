"""The node: a model goes in, and the same model goes out, of which only some evaluations are computed."""

import logging
from collections.abc import Callable
from typing import Any

import comfy.model_sampling  # type: ignore[import-not-found]
import torch
from comfy.patcher_extension import WrappersMP  # type: ignore[import-not-found]

from .deciding import Wish, plan_for
from .holding import Held, Report, play
from .mathematics import Pace, levels_of
from .rehearsal import level_of, rehearse

KEY = "tenuto"
ABOUT = (
    "Computes only some of the model's evaluations and predicts the others. Works with every model and every sampler "
    "that adds no noise; other samplers are computed in full, and the text under the node says so."
)


class Tenuto:
    """ComfyUI's interface of a node."""

    CATEGORY = "advanced/model"
    DESCRIPTION = ABOUT
    FUNCTION = "patch"
    RETURN_TYPES = ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        share = {
            "default": 0.25,
            "min": 0.05,
            "max": 1.0,
            "step": 0.01,
            "tooltip": "share of the evaluations to compute",
        }
        count = {
            "default": 0,
            "min": 0,
            "max": 1000,
            "tooltip": "how many evaluations to compute; 0: as the budget says",
        }
        quality = {
            "default": 0.0,
            "min": 0.0,
            "max": 80.0,
            "step": 1.0,
            "tooltip": "how near to the full run, in dB (40: hard to see); 0: as budget or evaluations say. "
            "With a quality, evaluations is the most",
        }
        return {
            "required": {"model": ("MODEL",), "budget": ("FLOAT", share), "evaluations": ("INT", count)},
            "optional": {"quality": ("FLOAT", quality)},
            "hidden": {"unique_id": "UNIQUE_ID"},
        }

    def patch(
        self, model: Any, budget: float, evaluations: int, quality: float = 0.0, unique_id: str | None = None
    ) -> tuple[Any]:
        wish = Wish(budget, evaluations or None, quality or None)
        return (patched(model, wish, lambda report: show(report, unique_id)),)


def patched(model: Any, wish: Wish, tell: Callable[[Report], None]) -> Any:
    """A clone of ComfyUI's model whose samplings are held; `tell` is given a report after each of them."""
    clone = model.clone()
    sampling = Sampling(wish, tell)
    for kind, wrapper in ((WrappersMP.SAMPLER_SAMPLE, sampling.sample), (WrappersMP.PREDICT_NOISE, sampling.predict)):
        clone.remove_wrappers_with_key(kind, KEY)  # a second node takes the place of the first
        clone.add_wrapper_with_key(kind, KEY, wrapper)
    return clone


class Sampling:
    """Stands around the sampler and around the model's guided prediction. Every sampling begins without a memory."""

    def __init__(self, wish: Wish, tell: Callable[[Report], None]) -> None:
        self._wish, self._tell = wish, tell
        self._predict: Callable[..., Any] | None = None  # what a prediction is, while a sampling is on

    def sample(
        self,
        executor: Any,
        guider: Any,
        sigmas: torch.Tensor,
        extra_args: dict[str, Any],
        callback: Any,
        noise: torch.Tensor,
        latent_image: torch.Tensor | None = None,
        denoise_mask: torch.Tensor | None = None,
        disable_pbar: bool = False,
    ) -> Any:
        def run(predict: Callable[..., Any], told: Any = None, seed: int | None = None, quiet: bool = True) -> Any:
            """seed: only rehearse, and add this to the seed."""
            given = {**extra_args, "seed": (extra_args.get("seed") or 0) + seed} if seed else dict(extra_args)
            before, self._predict = self._predict, predict
            mask = None if seed is not None else denoise_mask  # a mask's own noise is no noise of the sampler
            try:  # samplers write into the sigmas and the arguments that they are given
                return executor(guider, sigmas.clone(), given, told, noise, latent_image, mask, quiet)
            finally:
                self._predict = before

        guided = len(guider.model_options.get("sampler_post_cfg_function", []))  # set by nodes, not by the sampler

        def made_up(model: Callable[[torch.Tensor, float], torch.Tensor], change: int) -> None:
            def predict(_: Any, x: Any, timestep: Any, model_options: Any, __: Any) -> Any:
                value = model(x, level_of(timestep))
                return _listened(model_options, guided, x, timestep, {"denoised": value, "uncond_denoised": value})

            devices = [noise.device] if noise.device.type == "cuda" else []
            with torch.random.fork_rng(devices):
                torch.manual_seed(change)
                run(predict, seed=change)

        rehearsal = rehearse(made_up)
        flow = isinstance(guider.inner_model.model_sampling, comfy.model_sampling.CONST)
        sigmas_seen = rehearsal.sigmas
        plan = plan_for(sigmas_seen, flow, self._wish)
        why = rehearsal.in_full_because or plan.in_full_because
        if why:
            result = run(_computed, callback, quiet=disable_pbar)
            self._tell(Report(len(sigmas_seen), tuple(range(len(sigmas_seen))), 0.0, why))
            return result
        pace = None
        if self._wish.quality is not None:
            pace = Pace(self._wish.quality, levels_of(sigmas_seen, flow), self._wish.evaluations)
        held = Held(sigmas_seen, flow, plan.computed, pace)
        told = _once(callback)
        result = play(lambda: run(_holding(held, guided), told), held)
        computed = tuple(sorted(held.known))
        near, missed = held.account.estimated, held.account.missed
        self._tell(Report(len(sigmas_seen), computed, held.seconds, estimated=near, too_few=missed))
        return result

    def predict(self, executor: Any, x: Any, timestep: Any, model_options: Any = None, seed: Any = None) -> Any:
        act = self._predict or _computed
        return act(executor, x, timestep, {} if model_options is None else model_options, seed)


def _computed(executor: Any, x: Any, timestep: Any, model_options: Any, seed: Any) -> Any:
    return executor(x, timestep, model_options, seed)


def _holding(held: Held, guided: int) -> Callable[..., Any]:
    """The model's prediction under `held`.

    guided  how many functions after the guidance were set by nodes. What comes after them was set by the sampler, which
            reads the unguided estimate there (the cfg_pp samplers); it gets a predicted one at held evaluations
    """

    def predict(executor: Any, x: Any, timestep: Any, model_options: Any, seed: Any) -> Any:
        listeners = model_options.get("sampler_post_cfg_function", [])[guided:]
        caught: dict[str, torch.Tensor] = {}

        def catch(args: dict[str, Any]) -> Any:
            if args.get("uncond_denoised") is not None:
                caught["uncond_denoised"] = args["uncond_denoised"]
            return args["denoised"]

        def compute() -> dict[str, torch.Tensor]:
            options = model_options
            if listeners:
                options = {**model_options}
                options["sampler_post_cfg_function"] = [*model_options["sampler_post_cfg_function"], catch]
            return {"denoised": executor(x, timestep, options, seed), **caught}

        values, computed = held.next(x, compute)
        return values["denoised"] if computed else _listened(model_options, guided, x, timestep, values)

    return predict


def _listened(model_options: Any, guided: int, x: Any, timestep: Any, values: dict[str, torch.Tensor]) -> Any:
    """Tell the functions that the sampler set after the guidance of values that were not computed; their result."""
    result = values["denoised"]
    for listener in model_options.get("sampler_post_cfg_function", [])[guided:]:
        result = listener({
            "denoised": result, "uncond_denoised": values.get("uncond_denoised"), "cond_denoised": result,
            "sigma": timestep, "input": x, "model_options": model_options,
        })  # fmt: skip
    return result


def _once(callback: Any) -> Any:
    """ComfyUI's callback, called once for each step although the sampler runs several times."""
    if callback is None:
        return None
    done = -1

    def told(step: int, *args: Any) -> None:
        nonlocal done
        if step > done:
            done = step
            callback(step, *args)

    return told


def show(report: Report, node: str | None) -> None:
    """Log the report, and show it under the node."""
    logging.info(str(report).replace("\n", "  "))
    if node is None:
        return
    try:
        from server import PromptServer  # type: ignore[import-not-found]
    except ImportError:
        return  # the nodes are used without ComfyUI's server
    server = getattr(PromptServer, "instance", None)
    if server is not None and hasattr(server, "send_progress_text"):
        server.send_progress_text(str(report), node)
