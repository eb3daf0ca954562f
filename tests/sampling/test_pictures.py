"""Sampling: the solvers are diffusers' own, samples depend on their seed alone, schedules are checked before use."""

from dataclasses import replace

import pytest
import torch

import tenuto
from tenuto.errors import ScheduleError, UsageError
from tenuto.sampling.pictures import Sampling, guide, make_solver
from tests.conftest import random_dit, write_checkpoint


@pytest.fixture
def model(checkpoint):
    return tenuto.load(str(checkpoint))


def naive_ddim(network, label, seed, steps, guidance):
    """DDIM with η = 0, written out."""
    alpha = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
    x = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    for i in reversed(range(steps)):
        t = i * (1000 // steps)
        before = alpha[t - 1000 // steps] if i > 0 else torch.tensor(1.0)
        at = torch.tensor([t])
        conditional = network(x, at, torch.tensor([label]))
        unconditional = network(x, at, torch.tensor([4]))
        noise = unconditional + guidance * (conditional - unconditional)
        clean = (x - (1 - alpha[t]).sqrt() * noise) / alpha[t].sqrt()
        x = before.sqrt() * clean + (1 - before).sqrt() * noise
    return x


@torch.no_grad()
def test_ddim_equals_the_textbook(model):
    got = tenuto.generate(model, [2], seed=7, steps=5, guidance=2.0)
    torch.testing.assert_close(got, naive_ddim(model.network, 2, 7, 5, 2.0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("solver", ["ddim", "dpm++"])
def test_samples_do_not_depend_on_the_batch(model, solver):
    schedule = tenuto.schedule(model, steps=6, evaluations=3)
    options = {"steps": 6, "solver": solver, "schedule": schedule, "seed": 3}
    together = tenuto.generate(model, [0, 1, 2, 3, 0], batch=5, **options)
    apart = tenuto.generate(model, [0, 1, 2, 3, 0], batch=2, **options)
    torch.testing.assert_close(together, apart, rtol=1e-3, atol=1e-4)
    alone = tenuto.generate(model, [2], seeds=[5], steps=6, solver=solver, schedule=schedule)
    torch.testing.assert_close(together[2:3], alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("solver", ["ddim", "dpm++"])
@pytest.mark.parametrize("guidance", [1.0, 1.5])
def test_a_schedule_with_nothing_held_changes_not_one_bit(model, solver, guidance):
    full = tenuto.generate(model, [0, 3], steps=4, solver=solver, guidance=guidance)
    schedule = tenuto.schedule(model, steps=4, budget=1.0)
    assert torch.equal(
        tenuto.generate(model, [0, 3], steps=4, solver=solver, guidance=guidance, schedule=schedule), full
    )


def test_a_schedule_computes_just_its_pattern(model):
    calls = []
    for block in model.network.blocks:
        block.mlp.register_forward_hook(lambda *_: calls.append(1))
    tenuto.generate(model, [0], steps=8, schedule=tenuto.schedule(model, steps=8, every=4))
    assert len(calls) == 3 * 2


@pytest.mark.parametrize(("keep", "prepared"), [("output", 4), ("branch", 12)])
def test_conditions_are_worked_out_only_of_steps_that_evaluate(model, monkeypatch, keep, prepared):
    schedule = tenuto.schedule(model, steps=12, every=3, keep=keep)
    plain, times = model.network.prepare, []

    def counted(t, *conditions):
        times.extend(t.tolist())
        return plain(t, *conditions)

    monkeypatch.setattr(model.network, "prepare", counted)
    tenuto.generate(model, [1, 2], schedule=schedule)
    assert len(times) == prepared


@pytest.mark.parametrize("solver", ["ddim", "dpm++"])
def test_more_evaluations_come_nearer_to_the_full_run(solver):
    model = tenuto.load("tiny-dit")
    full = tenuto.generate(model, [3, 7], steps=25, solver=solver)
    near = [
        float(tenuto.psnr(tenuto.generate(model, [3, 7], schedule=schedule, solver=solver), full).mean())
        for schedule in (tenuto.schedule(model, 25, evaluations=count) for count in (5, 9, 16))
    ]
    assert near == sorted(near) and near[-1] > 30, near


@pytest.mark.parametrize("solver", ["ddim", "dpm++"])
def test_who_watches_sees_predicted_and_exact_outputs_and_changes_nothing(model, solver):
    schedule = tenuto.schedule(model, steps=12, evaluations=4)
    expected = tenuto.generate(model, [1, 2], schedule=schedule, solver=solver)
    seen = {}

    def watch(step, predicted, exact):
        seen[step] = predicted, exact

    assert torch.equal(tenuto.generate(model, [1, 2], schedule=schedule, solver=solver, watch=watch), expected)
    assert sorted(seen) == [step for step in range(12) if not schedule.full_steps[step]]
    for predicted, exact in seen.values():
        assert predicted.shape == exact.shape == expected.shape and not torch.equal(predicted, exact)


@pytest.mark.parametrize("solver", ["ddim", "dpm++"])
def test_the_first_evaluation_asks_about_a_level_with_a_trace_of_signal(model, solver):
    """As many evaluations as asked; the first of them is told a later timestep, and at every step its own otherwise."""
    seen = []
    model.network.register_forward_pre_hook(lambda module, args: seen.append(float(args[1][0])))
    schedule = tenuto.schedule(model, steps=50, evaluations=8)
    tenuto.generate(model, [0], schedule=schedule, solver=solver, mode="skip")
    times = [float(t) for t in make_solver(model.noise, Sampling(steps=50, solver=solver)).timesteps]
    places = [times.index(t) for t in seen]
    computed = torch.tensor(schedule.full_steps).nonzero().flatten().tolist()
    assert places[1:] == computed[1:] and computed[0] == 0 < places[0] < computed[1]
    plain = tenuto.schedule(model, steps=50, evaluations=8, ahead=False)
    seen.clear()
    tenuto.generate(model, [0], schedule=plain, solver=solver, mode="skip")
    assert seen[0] == times[0] and len(seen) == 8


def test_asking_ahead_brings_few_evaluations_nearer_to_the_full_run():
    model = tenuto.load("tiny-dit")
    options = {"guidance": 5.0, "steps": 50}
    full = tenuto.generate(model, [3, 7], **options)
    near, far = (
        float(tenuto.psnr(tenuto.generate(model, [3, 7], schedule=schedule, **options), full).mean())
        for schedule in (tenuto.schedule(model, 50, evaluations=7, ahead=ahead) for ahead in (True, False))
    )
    assert near > far + 2, (near, far)


def test_both_solvers_evaluate_once_a_step(model):
    for solver in ("ddim", "dpm++"):
        for steps in (1, 7, 50):
            assert len(make_solver(model.architecture.noise, Sampling(steps=steps, solver=solver)).timesteps) == steps


def test_guidance_by_hand():
    noise = torch.tensor([[[[1.0]], [[2.0]]], [[[0.0]], [[5.0]]]])  # conditional, then unconditional; two channels
    assert guide(noise, 3).flatten().tolist() == [3.0, 5 + 3 * (2 - 5)]
    assert guide(noise, 3, channels=1).flatten().tolist() == [3.0, 2.0]


def test_without_guidance_the_null_class_is_not_evaluated(model):
    batches = []
    model.network.register_forward_pre_hook(lambda module, inputs: batches.append(len(inputs[0])))
    tenuto.generate(model, [0, 1], steps=1, guidance=1.0)
    tenuto.generate(model, [0, 1], steps=1, guidance=1.5)
    assert batches == [2, 4]


def test_a_model_with_learned_variance_gives_samples_of_its_input_channels(tmp_path):
    network = random_dit(learn_sigma=True)
    model = tenuto.load(str(write_checkpoint(tmp_path / "dit", network)))
    assert tenuto.generate(model, [0], steps=2).shape == (1, 1, 8, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": []}, "No class"),
        ({"classes": [4]}, "knows the classes 0 to 3, not 4"),
        ({"classes": ["-1"]}, "knows the classes 0 to 3, not -1"),
        ({"classes": ["hat"]}, "knows no class 'hat'. It knows the classes 0 to 3.$"),
        ({"classes": [0], "seeds": [1, 2]}, "2 seeds, 1 samples"),
        ({"classes": [0], "batch": 0}, "size of a batch must be at least 1"),
        ({"classes": [0], "steps": 0}, "between 1 and 1,000"),
        ({"classes": [0], "steps": 2.5}, "a whole number, not 2.5"),
        ({"classes": [0], "seed": "x"}, "a whole number, not 'x'"),
        ({"classes": [0], "seed": 2**70}, "seed must lie between"),
        ({"classes": [1.5]}, "a whole number, not 1.5"),
        ({"classes": [0], "solver": "euler"}, "ddim or dpm"),
        ({"classes": [0], "guidance": -1.0}, "negative"),
        ({"classes": [0], "guidance": float("inf")}, "infinite"),
        ({"classes": [0], "steps": 600}, "begin at timestep 599"),
        ({"classes": [0], "steps": 1000, "solver": "dpm++"}, "repeat"),
    ],
)
def test_requests_that_make_no_sense(model, options, message):
    with pytest.raises(UsageError, match=message):
        tenuto.generate(model, **options)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("-1", "natural knows the classes 0 (goldfish) to 3 (king penguin), not -1."),
        ("4", "natural knows the classes 0 (goldfish) to 3 (king penguin), not 4."),
        ("king pengiun", "natural knows no class 'king pengiun'. Did you mean king penguin?"),
        ("zebra", "natural knows no class 'zebra'. It knows the classes 0 (goldfish) to 3 (king penguin)."),
    ],
)
def test_an_unknown_class_gets_one_short_sentence(model, wanted, said):
    named = replace(model, name="natural", labels=("goldfish", "bullfrog", "goose", "king penguin"))
    with pytest.raises(UsageError) as error:
        tenuto.generate(named, [wanted], steps=2)
    assert str(error.value) == said


def test_a_schedule_for_other_steps_or_weights_is_refused(model, tmp_path):
    schedule = tenuto.schedule(model, steps=4, evaluations=2)
    with pytest.raises(UsageError, match="for 4 steps and the sampler takes 5"):
        tenuto.generate(model, [0], steps=5, schedule=schedule)
    other = tenuto.load(str(write_checkpoint(tmp_path / "other", random_dit(seed=1))))
    tenuto.generate(other, [0], steps=4, schedule=schedule)  # which no weights decided
    ranked = tenuto.schedule(model, steps=4, policy="lifetimes")
    with pytest.raises(ScheduleError, match="other weights"):
        tenuto.generate(other, [0], steps=4, schedule=ranked)


def test_two_generations_in_any_order_give_what_each_alone_would(model):
    schedule = tenuto.schedule(model, steps=6, every=3)
    alone = tenuto.generate(model, [1], seed=1, steps=6, schedule=schedule)
    tenuto.generate(model, [0, 2, 3], seed=9, steps=6, schedule=schedule)
    assert torch.equal(tenuto.generate(model, [1], seed=1, steps=6, schedule=schedule), alone)


def test_progress_counts_every_image_of_every_step(model):
    seen = []
    tenuto.generate(model, [0, 1, 2], steps=4, batch=2, progress=seen.append)
    assert sum(seen) == 12


@pytest.mark.gpu
def test_the_gpu_gives_the_cpus_samples(checkpoint):
    on_cpu, on_gpu = tenuto.load(str(checkpoint)), tenuto.load(str(checkpoint), device="cuda", dtype=torch.float32)
    schedule = tenuto.schedule(on_cpu, steps=6, evaluations=3)
    options = {"steps": 6, "schedule": schedule, "seed": 3}
    expected = tenuto.generate(on_cpu, [0, 1], **options)
    torch.testing.assert_close(tenuto.generate(on_gpu, [0, 1], **options).cpu(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
def test_nothing_in_the_loop_waits_for_the_device(checkpoint):
    model = tenuto.load(str(checkpoint), device="cuda")
    schedule = tenuto.schedule(model, steps=10, evaluations=3)
    tenuto.generate(model, [0, 1], schedule=schedule)  # records
    steps = []

    def watch(images):
        torch.cuda.set_sync_debug_mode("error" if len(steps) < 8 else "default")  # from the second step to the last
        steps.append(images)

    try:
        tenuto.generate(model, [0, 1], schedule=schedule, progress=watch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(steps) == 10


def test_prompts_for_a_model_of_classes_are_refused_with_what_it_takes(model):
    with pytest.raises(UsageError, match=r"no option 'prompts'.*classes=\[…\]"):
        tenuto.generate(model, prompts=["a shoe"], steps=4)
