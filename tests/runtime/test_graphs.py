"""Graphs give what running step by step gives, in any order of generations, shapes and schedules; or they say why not.

These need a GPU. What they record and replay is tested on the CPU in test_plan.py.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import tenuto
from tenuto.runtime.executor import Executor, Slower
from tenuto.runtime.residual import plain
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.candidates.padded import PaddedExecutor
from tenuto_lab.networks.uvit import UViT, UViTConfig
from tenuto_lab.units.unit_executor import UnitExecutor
from tests.conftest import random_dit

pytestmark = pytest.mark.gpu
STEPS = 9
KINDS = {
    "refresh, linear, branch": ("refresh", "linear", "branch"),
    "refresh, hold, update": ("refresh", "constant", "update"),
    "refresh, quadratic, update": ("refresh", "quadratic", "update"),
    "lifetimes": ("lifetimes", "constant", "update"),
}


def test_the_default_records_one_graph_and_looks_at_nothing(monkeypatch):
    from tenuto_lab.units import chain

    monkeypatch.setattr(chain, "_evaluate_fakes", lambda *_: pytest.fail("the network was looked at"))
    network = dit()
    units = dit_units(network)
    active = np.tile(np.arange(STEPS) % 3 == 0, (len(units), 1))
    schedule = Schedule(tuple(units), active, (1.0,) * len(units), "linear", "output", "toy", None)
    executor = Executor(network, schedule, mode="jagged")
    want = run(Executor(network, schedule, mode="skip"))
    assert_same(run(executor), want)
    assert_same(run(executor), want)
    assert executor.report().graphs == 1


@pytest.fixture(autouse=True)
def exact_float32():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def schedule_for(units, kind, steps=STEPS, seed=0):
    policy, predict, keep = KINDS[kind]
    rng = np.random.default_rng(seed)
    if policy == "refresh":
        active = np.tile(np.arange(steps) % 3 == 0, (len(units), 1))
    else:
        active = np.arange(steps)[None] < rng.integers(1, steps + 1, len(units))[:, None]
    return Schedule(tuple(units), active, (1.0,) * len(units), predict, keep, "toy", "sha256:toy")


def dit(dtype=torch.float32):
    return random_dit().to("cuda", dtype)


def dit_units(network):
    return [f"blocks.{i}.{kind}" for i in range(len(network.blocks)) for kind in ("attn", "mlp")]


def inputs(seed, batch=2, dtype=torch.float32, size=8, channels=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, channels, size, size, generator=generator).to("cuda", dtype)
    return x, torch.full((batch,), 900 - seed, device="cuda"), torch.arange(batch, device="cuda") % 4


def run(executor, seed=0, **kwargs):
    generation = executor.start()
    steps = executor.schedule.steps
    with torch.inference_mode():
        return [generation(*inputs(100 * seed + step, **kwargs)) for step in range(steps)]


def assert_same(got, want, tolerance=1e-5):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


WAYS = {"padded": PaddedExecutor, "jagged": partial(Executor, mode="jagged")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_graphs_give_what_skipping_gives(way, kind):
    network = dit()
    schedule = schedule_for(dit_units(network), kind)
    executor = WAYS[way](network, schedule)
    want = run(Executor(network, schedule, mode="skip"))
    assert_same(run(executor), want)  # recorded
    assert_same(run(executor), want)  # replayed
    report = executor.report()
    assert report.graphs == (1 if way == "padded" else len(executor.plan(*inputs(0)).programs))
    assert report.cache_bytes > 0


@pytest.mark.parametrize("way", WAYS)
def test_bfloat16_agrees_to_its_rounding(way):
    network = dit(torch.bfloat16)
    schedule = schedule_for(dit_units(network), "refresh, linear, branch")
    want = run(Executor(network, schedule, mode="skip"), dtype=torch.bfloat16)
    got = run(WAYS[way](network, schedule), dtype=torch.bfloat16)
    for a, b in zip(got, want, strict=True):
        assert (a - b).float().norm() < 0.02 * b.float().norm()


def test_compiled_branches_agree_and_are_compiled_once_for_all_blocks():
    import torch._dynamo.utils as utils

    network = dit()
    schedule = schedule_for(dit_units(network), "lifetimes")
    want = run(Executor(network, schedule, mode="skip"))
    torch._dynamo.reset()
    utils.counters.clear()
    executor = UnitExecutor(network, schedule, mode="jagged", compiled=True)
    assert_same(run(executor), want, 1e-4)
    assert_same(run(executor), want, 1e-4)
    # Attention and MLP, each with its sum, kept and not; not one for each block or pattern.
    assert 2 <= utils.counters["stats"]["unique_graphs"] <= 4
    assert executor.report().graphs == len(executor.plan(*inputs(0)).programs)


@pytest.mark.parametrize("mode", ["skip", "jagged"])
@pytest.mark.parametrize("name", ["tiny-dit", "tiny-uvit", "tiny-sdxl", "small-llada"])
def test_every_family_gives_the_same_by_every_path(name, mode):
    try:
        model = tenuto.load(name, device="cuda", dtype=torch.float32)
    except tenuto.TenutoError:
        pytest.skip(f"{name} is not here")
    names = [unit.name for unit in model.units]
    for kind in ("refresh, linear, branch", "lifetimes"):
        table = schedule_for(names, kind, steps=8)
        schedule = Schedule(
            table.units, table.active, table.flops, table.predict, table.keep, name, min(model.fingerprints)
        )
        if model.architecture.asks_for == "prompt":
            options = {"steps": 8, "length": 16, "block_length": 8, "schedule": schedule}
            prompts = ["close: ([{ ->", "sort: 42 48 7 25 53 40 ->"]
            texts = [tenuto.generate_text(model, prompts, mode=m, **options) for m in ("skip", mode, mode)]
            assert texts[0] == texts[1] == texts[2]
            continue
        wanted = (
            {"captions": ["a red car", "a dog"]} if model.architecture.asks_for == "caption" else {"classes": [0, 3]}
        )
        want = tenuto.generate(model, **wanted, schedule=schedule, mode="skip")
        for _ in range(2):
            got = tenuto.generate(model, **wanted, schedule=schedule, mode=mode)
            torch.testing.assert_close(got, want, rtol=1e-3, atol=2e-3)


def test_generations_do_not_disturb_one_another():
    network = dit()
    jagged, want = {}, {}
    for i, kind in enumerate(KINDS):
        schedule = schedule_for(dit_units(network), kind, seed=i)
        jagged[kind] = Executor(network, schedule, mode="jagged")
        for batch in (1, 2, 3):
            want[kind, batch] = run(Executor(network, schedule, mode="skip"), seed=batch, batch=batch)
    order = np.random.default_rng(0)
    for _ in range(24):  # any order of schedules and batch sizes
        kind, batch = list(KINDS)[order.integers(4)], int(order.integers(1, 4))
        assert_same(run(jagged[kind], seed=batch, batch=batch), want[kind, batch])


def test_a_second_generation_at_once_is_right_and_says_it_is_slower():
    network = dit()
    schedule = schedule_for(dit_units(network), "refresh, linear, branch")
    executor, other = Executor(network, schedule, mode="jagged"), Executor(network, schedule, mode="skip")
    want = run(other, 1), run(other, 2)
    run(executor)
    first, second = executor.start(), executor.start()

    def interleaved():
        with torch.inference_mode():
            return [(first(*inputs(100 + step)), second(*inputs(200 + step))) for step in range(STEPS)]

    with pytest.warns(Slower, match="another generation"):
        got = interleaved()
    assert_same([a for a, _ in got], want[0])
    assert_same([b for _, b in got], want[1])


def test_weights_that_were_moved_or_replaced_are_read_where_they_are_now():
    network = dit()
    schedule = schedule_for(dit_units(network), "lifetimes")
    executor = Executor(network, schedule, mode="jagged")
    want = run(executor)
    network.to("cpu").to("cuda")
    junk = torch.full((1 << 22,), float("nan"), device="cuda")  # where they were
    assert_same(run(executor), want)
    network.load_state_dict({key: 2 * value for key, value in network.state_dict().items()}, assign=True)
    assert_same(run(executor), run(Executor(network, schedule, mode="skip")))
    assert junk.isnan().all()


def test_two_threads_record_and_replay_at_once():
    networks = [dit() for _ in range(2)]
    schedule = schedule_for(dit_units(networks[0]), "refresh, linear, branch")
    want = run(Executor(networks[0], schedule, mode="skip"))
    executors = [Executor(network, schedule, mode="jagged") for network in networks]
    with ThreadPoolExecutor(4) as threads, warnings.catch_warnings():
        warnings.simplefilter("ignore", Slower)  # those that find the graphs in use
        for result in threads.map(lambda i: run(executors[i % 2]), range(12)):
            assert_same(result, want)


def test_an_abandoned_generation_gives_the_graphs_back():
    network = dit()
    executor = Executor(network, schedule_for(dit_units(network), "lifetimes"), mode="jagged")
    want = run(executor)
    with torch.inference_mode():
        executor.start()(*inputs(5))
    assert_same(run(executor), want)
    assert not executor._warned


def test_what_a_generation_returned_stays_as_it_was():
    network = dit()
    executor = Executor(network, schedule_for(dit_units(network), "refresh, hold, update"), mode="jagged")
    first = run(executor)
    kept = [output.clone() for output in first]
    run(executor, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


def test_nothing_in_the_loop_waits_for_the_device():
    network = dit()
    executor = Executor(network, schedule_for(dit_units(network), "refresh, linear, branch"), mode="jagged")
    run(executor)
    given = [inputs(step) for step in range(STEPS)]
    generation = executor.start()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.inference_mode():
            for step in range(STEPS):
                generation(*given[step])
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Stubborn(nn.Module):
    """Takes a tensor to the host and back in the middle, which cannot be recorded."""

    def forward(self, x, residual=plain):
        h = residual("one", x, lambda: (2 * x.cpu()).to(x.device))
        return residual("two", h, lambda: 2 * h)


def test_what_cannot_be_recorded_runs_right_and_says_so():
    table = Schedule(("one", "two"), np.array([[1, 0, 1], [1, 1, 0]], bool), (1.0, 1.0), "constant", "update", "t", "s")
    network = Stubborn().cuda()
    given = [torch.randn(4, 4, device="cuda") for _ in range(3)]
    skip, jagged = Executor(network, table, mode="skip"), Executor(network, table, mode="jagged")

    def through(executor):
        generation = executor.start()
        with torch.inference_mode():
            return [generation(x) for x in given]

    want = through(skip)
    with pytest.warns(Slower, match="recording one failed"):
        got = through(jagged)
    assert_same(got, want)
    assert_same(through(jagged), want)
    assert torch.isfinite(torch.randn(4, device="cuda")).all()  # random numbers go on after a recording that broke off
    other = dit()
    schedule = schedule_for(dit_units(other), "lifetimes")
    assert_same(run(Executor(other, schedule, mode="jagged")), run(Executor(other, schedule, mode="skip")))


def test_released_graphs_give_their_memory_back():
    network = dit()
    executor = Executor(network, schedule_for(dit_units(network), "refresh, hold, update"), mode="jagged")
    run(executor, batch=4096)
    before = torch.cuda.memory_reserved()
    executor.release()
    assert torch.cuda.memory_reserved() <= before - (1 << 24)
    assert executor.report().graphs == 0


def test_memory_that_is_kept_for_later_does_not_stop_a_recording():
    network, many = dit(), 4096  # so that what is recorded needs memory of its own
    schedule = schedule_for(dit_units(network), "refresh, hold, update")
    want = run(Executor(network, schedule, mode="skip"), batch=many)
    hoard = [torch.empty(1 << 28, dtype=torch.uint8, device="cuda") for _ in range(4)]
    del hoard  # but the allocator keeps it, and there is no more
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 24)) / whole)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Slower)
            assert_same(run(Executor(network, schedule, mode="jagged"), batch=many), want)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_bounds_and_offload_hold_on_the_gpu():
    network = dit()
    schedule = schedule_for(dit_units(network), "lifetimes")
    want = run(Executor(network, schedule, mode="skip"))
    offloaded = UnitExecutor(network, schedule, mode="jagged", offload=True)
    for _ in range(2):
        assert_same(run(offloaded), want)
    assert offloaded.report().cache_bytes == 0
    few = UnitExecutor(network, schedule, mode="jagged", graphs=4)
    run(few)
    assert few.report().graphs <= 4 and "lifetimes became" in few.report().given_up
    branches = schedule_for(dit_units(network), "refresh, linear, branch")
    bound = UnitExecutor(network, branches).plan(*inputs(0)).cache_bytes // 3
    lean = UnitExecutor(network, branches, mode="jagged", memory=bound)
    run(lean)
    assert 0 < lean.report().cache_bytes <= bound


def test_an_input_on_the_cpu_is_named():
    network = dit()
    executor = Executor(network, schedule_for(dit_units(network), "lifetimes"), mode="jagged")

    class Mixed(nn.Module):
        def forward(self, x, t, y, residual=plain):
            return network(x, t.cuda(), y, residual=residual)

    executor = Executor(Mixed(), executor.schedule, mode="jagged")
    x, t, y = inputs(0)
    with torch.inference_mode(), pytest.warns(Slower, match="lies on the CPU"):
        executor.start()(x, t.cpu(), y)


def test_channels_last_streams_are_kept_as_they_lie():
    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))

        def forward(self, x, residual=plain):
            for i, layer in enumerate(self.layers):
                x = residual(f"c{i}", x, lambda x=x, layer=layer: layer(x))
            return x

    torch.manual_seed(0)
    network = Conv().cuda().to(memory_format=torch.channels_last)
    units = ["c0", "c1", "c2"]
    for kind in KINDS:
        schedule = schedule_for(units, kind)
        results = []
        for way in (partial(Executor, mode="skip"), *WAYS.values()):
            generation = way(network, schedule).start()
            with torch.inference_mode():
                results.append(
                    [
                        generation(inputs(s, size=16, channels=8)[0].to(memory_format=torch.channels_last))
                        for s in range(9)
                    ]
                )
        assert_same(results[1], results[0], 1e-4)
        assert_same(results[2], results[0], 1e-4)


def test_skips_end_a_run_on_the_gpu_too():
    torch.manual_seed(0)
    network = UViT(UViTConfig(img_size=8, in_chans=1, embed_dim=32, depth=4, num_heads=2, num_classes=5))
    network = network.cuda().eval().requires_grad_(False)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.2)
    from tenuto_lab.networks.uvit import units

    names = [unit.name for unit in units(network.config)]
    for kind in KINDS:
        schedule = schedule_for(names, kind)
        assert_same(
            run(Executor(network, schedule, mode="jagged")), run(Executor(network, schedule, mode="skip")), 1e-4
        )
