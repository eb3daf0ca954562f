"""Holding the output: extrapolated by hand, nothing evaluated in between, nothing of one generation in the next."""

import numpy as np
import pytest
import torch

import tenuto
from tenuto.errors import ScheduleError
from tenuto.runtime.executor import Executor
from tenuto.runtime.prediction import polynomial_weights
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.checking import check

UNITS = tuple(f"blocks.{i}.{kind}" for i in range(3) for kind in ("attn", "mlp"))


def schedule(steps=9, every=3, predict="quadratic", keep="output", **changes) -> Schedule:
    active = np.tile(np.arange(steps) % every == 0, (len(UNITS), 1))
    return Schedule(UNITS, active, (1.0,) * len(UNITS), predict, keep, "toy", "sha256:0", **changes)


def inputs(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2, 1, 8, 8, generator=generator), torch.full((2,), 900 - step), torch.arange(2)


@pytest.mark.parametrize("predict", ["constant", "linear", "quadratic", "cubic"])
@torch.inference_mode()
def test_outputs_in_between_are_extrapolated_and_nothing_is_evaluated(network, predict):
    wanted = schedule(12, predict=predict)
    calls = []
    handle = network.register_forward_pre_hook(lambda *_: calls.append(1))
    generation = Executor(network, wanted).start()
    got = [generation(*inputs(step)) for step in range(12)]
    handle.remove()
    evaluated = {step: network(*inputs(step)) for step in range(0, 12, 3)}
    for step in range(12):
        nodes = [node for node in evaluated if node <= step][-(wanted.order + 1) :]
        weights = [float(node == step) for node in nodes] if step in evaluated else polynomial_weights(nodes, step)
        expected = sum(w * evaluated[node] for w, node in zip(weights, nodes, strict=True))
        torch.testing.assert_close(got[step], expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == 4


@torch.inference_mode()
def test_every_step_computed_is_full_inference_to_the_bit(network):
    generation = Executor(network, schedule(4, every=1)).start()
    for step in range(4):
        assert torch.equal(generation(*inputs(step)), network(*inputs(step)))


@torch.inference_mode()
def test_who_is_given_an_output_may_write_into_it_and_the_next_generation_knows_nothing(network):
    executor = Executor(network, schedule())
    first = executor.start()
    clean = [first(*inputs(step)) for step in range(9)]
    second = executor.start()
    for step, expected in enumerate(clean):
        output = second(*inputs(step))
        assert torch.equal(output, expected)
        output.zero_()
    assert executor.report().cache_bytes == 3 * clean[0].nbytes  # quadratic: the last three


@pytest.mark.parametrize("solver", ["ddim", "dpm++"])
def test_correction_keeps_a_picture_nearer_to_the_full_run(solver):
    model, classes = tenuto.load("tiny-dit"), [0, 3, 7, 9]
    full = tenuto.generate(model, classes, steps=20, solver=solver)
    near, far = (
        float(tenuto.psnr(tenuto.generate(model, classes, schedule=made, solver=solver), full).mean())
        for made in (tenuto.schedule(model, 20, evaluations=12, correction=correction) for correction in (True, False))
    )
    assert near > far + 2


def test_halves_are_wide_enough_to_be_extrapolated(network):
    half = network.to(torch.bfloat16)
    generation = Executor(half, schedule(6, predict="cubic")).start()
    with torch.inference_mode():
        given = [[x.to(torch.bfloat16) if x.is_floating_point() else x for x in inputs(step)] for step in range(6)]
        outputs = [generation(*each) for each in given]
    assert all(output.dtype == torch.bfloat16 and output.isfinite().all() for output in outputs)


def test_what_cannot_be_is_refused():
    ragged = np.ones((len(UNITS), 4), dtype=bool)
    ragged[0, 2] = False
    with pytest.raises(ScheduleError, match="all units or none"):
        Schedule(UNITS, ragged, (1.0,) * len(UNITS), "constant", "output", "toy", "sha256:0")
    with pytest.raises(ScheduleError, match="Only outputs are corrected"):
        schedule(keep="branch", corrected=True)
    with pytest.raises(ScheduleError, match="no rows"):
        schedule(predict="constant", rows="block")


@torch.inference_mode()
def test_outputs_of_any_known_structure_are_extrapolated_and_others_refused(network):
    class Opaque:
        pass

    def structured(x, t, y, residual):
        return {"sample": network(x, t, y, residual=residual), "name": "toy", "nothing": None}

    generation = Executor(structured, schedule(predict="linear"), module=network).start()
    outputs = [generation(*inputs(step)) for step in range(9)]
    torch.testing.assert_close(outputs[4]["sample"], outputs[3]["sample"] * 4 / 3 - outputs[0]["sample"] / 3)
    assert outputs[4]["name"] == "toy"
    with pytest.raises(ScheduleError, match="an? Opaque, which cannot be extrapolated"):
        Executor(
            lambda x, t, y, residual: (network(x, t, y, residual=residual), Opaque()), schedule(), module=network
        ).start()(*inputs(0))


def test_a_check_says_how_far_off_the_output_was():
    model = tenuto.load("tiny-dit")
    made = tenuto.schedule(model, steps=8, every=2)
    assert made.keep == "output"
    result = check(model, made, [0])
    assert (result.errors[:, 1::2] > 0).all() and (result.errors[:, ::2] == 0).all()
    assert [unit for unit, _, _ in result.worst_units()] == ["the output"] * 3
    assert result.likeness[0] == pytest.approx(float(tenuto.psnr(*both(model, made))[0]), abs=0.01)


def both(model, made):
    return (
        tenuto.generate(model, [0], schedule=made),
        tenuto.generate(model, [0], steps=made.steps),
    )
