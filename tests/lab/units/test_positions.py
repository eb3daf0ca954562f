"""Positions at which held units are computed all the same: by the book, by every residual, and refused if unclear."""

import numpy as np
import pytest
import torch

from tenuto.errors import ScheduleError, UsageError
from tenuto.models.llada import LLaDA, units
from tenuto.runtime.executor import Executor
from tenuto.runtime.residual import plain
from tenuto.sampling.masked import MaskedSampling, RowsOf, generate_tokens
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.candidates.padded import Padded
from tenuto_lab.units.holding import Planes, Unplanned
from tenuto_lab.units.plan import make_plan
from tenuto_lab.units.unit_executor import UnitExecutor
from tests.models.test_llada import TINY, make_network

PROMPTS = [[2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def network() -> LLaDA:
    return make_network(seed=3)


def schedule(steps=8, every=4, rows="written", held=None, **changes) -> Schedule:
    """All units refreshed together; those not in `held` computed always."""
    names = [unit.name for unit in units(TINY)]
    active = np.tile(np.arange(steps) % every == 0, (len(names), 1))
    if held is not None:
        active[[i for i, name in enumerate(names) if name not in held]] = True
    flops = tuple(unit.flops for unit in units(TINY))
    return Schedule(
        tuple(names),
        active,
        flops,
        changes.pop("predict", "constant"),
        "update",
        "toy",
        "sha256:0",
        {},
        rows,
        **changes,
    )


def by_the_book(network, schedule, steps):
    """For each step: the network with every held update patched at the rows, one position at a time."""
    kept, outputs = {}, []
    for step, (tokens, rows) in enumerate(steps):

        def residual(unit, h, branch, gate=None, step=step, rows=rows):
            if schedule.active[schedule.units.index(unit), step]:
                kept[unit] = branch()
            else:
                fresh = branch()  # everywhere; only some of it is used
                for row in range(len(rows)):
                    for position in rows[row].tolist():
                        kept[unit][row, position] = fresh[row, position]
            return h + kept[unit]

        outputs.append(network(tokens, residual=residual))
    return outputs


def some_steps(count, batch=2, length=12, rows=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randint(2, TINY.vocab_size, (batch, length), generator=generator),
            torch.stack([torch.randperm(length, generator=generator)[:rows] for _ in range(batch)]),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("held", [None, {"blocks.0.mlp", "blocks.1.attn"}])
@torch.inference_mode()
def test_held_units_are_computed_at_the_rows_and_nowhere_else(network, held):
    wanted, steps = schedule(held=held), some_steps(8)
    expected = by_the_book(network, wanted, steps)
    generation = Executor(network, wanted).start()
    for (tokens, rows), one in zip(steps, expected, strict=True):
        torch.testing.assert_close(generation(tokens, rows=rows), one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["planes", "padded", "unplanned"])
@torch.inference_mode()
def test_every_residual_does_the_same(network, kind):
    wanted, steps = schedule(), some_steps(8, seed=1)
    expected = by_the_book(network, wanted, steps)
    plan = UnitExecutor(network, wanted).plan(steps[0][0])
    if kind == "planes":
        planes = Planes(plan, CPU)
    residual = {"padded": lambda: Padded(wanted, plan.chain, CPU), "unplanned": lambda: Unplanned(wanted)}.get(kind)
    residual = residual() if residual else None
    for step, (tokens, rows) in enumerate(steps):
        if kind == "planes":
            from tenuto_lab.units.holding import Holding

            planes.at(step)
            now = Holding(plan, planes, plan.steps[step], rows)
        else:
            now, residual.rows = residual, rows
            if kind == "padded":
                residual.at(step)
            else:
                residual.step = step
        torch.testing.assert_close(network(tokens, residual=now), expected[step], rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_a_branch_asked_for_rows_gives_those_of_the_whole(network):
    tokens, rows = some_steps(1)[0]
    seen = {}

    def residual(unit, h, branch, gate=None):
        whole, some = branch(), branch(rows)
        seen[unit] = (whole.gather(1, rows[:, :, None].expand(-1, -1, whole.shape[-1])), some)
        return plain(unit, h, branch, gate)

    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, :3] = False  # a shorter prompt, padded on the left
    network(tokens, residual=residual, attention_mask=mask)
    assert len(seen) == len(units(TINY))
    for whole, some in seen.values():
        torch.testing.assert_close(some, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", ["written", "block", "generated"])
@pytest.mark.parametrize("guidance", [0.0, 1.0])
def test_the_sampler_says_which(network, rows, guidance):
    sampling = MaskedSampling(steps=8, length=8, block_length=4, guidance=guidance)
    executor = Executor(network, schedule(rows=rows))
    written = generate_tokens(executor, PROMPTS, sampling=sampling)
    assert written.shape == (2, 8) and (written != TINY.mask_token_id).all()
    full = generate_tokens(Executor(network, schedule(every=1, rows=rows)), PROMPTS, sampling=sampling)
    assert torch.equal(full, generate_tokens(network, PROMPTS, sampling=sampling))


def test_rows_are_those_written_since_the_last_full_step():
    sampling = MaskedSampling(steps=4, length=8, block_length=8)  # two tokens a step
    rows = RowsOf(schedule(steps=4, every=3), sampling, width=5, batch=1, device=CPU)
    shapes, told = set(), []
    for step in range(4):
        now = rows.next(5)
        shapes.add(tuple(now.shape))
        told.append(set(now[0].tolist()))
        rows.wrote(torch.tensor([[5 + 2 * step, 6 + 2 * step]]))
    assert shapes == {(1, 4)}  # as many at each step
    assert told[1:3] == [{5, 6}, {5, 6, 7, 8}]


def test_what_is_unclear_is_refused(network):
    with pytest.raises(UsageError, match="first step of each block"):
        generate_tokens(Executor(network, schedule(every=8, rows="block")), PROMPTS, steps=8, length=8, block_length=4)
    with pytest.raises(ScheduleError, match="does not say"):
        Executor(network, schedule()).start()(torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(ScheduleError, match="says which"):
        Executor(network, schedule(rows="none")).start()(torch.zeros(1, 4, dtype=torch.long), rows=torch.zeros(1, 1))
    with pytest.raises(ScheduleError, match="held as they were"):
        schedule(predict="linear")
    with pytest.raises(ScheduleError, match="Rows are one of"):
        schedule(rows="some")


def test_units_with_rows_are_kept_apart(network):
    plan = make_plan(schedule(), UnitExecutor(network, schedule()).plan(torch.zeros(1, 6, dtype=torch.long)).chain)
    assert all(cell.alone for cell in plan.cells) and len(plan.cells) == len(units(TINY))


def test_a_file_says_which_rows(tmp_path):
    from tenuto.scheduling.schedule import load_schedule

    schedule(rows="block").save(tmp_path / "s.json")
    assert load_schedule(tmp_path / "s.json") == schedule(rows="block")


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ["written", "block"])
def test_graphs_write_what_skipping_writes(rows):
    torch.backends.cuda.matmul.allow_tf32 = False
    network = make_network(seed=3).cuda()
    options = {"steps": 8, "length": 8, "block_length": 4}
    want = generate_tokens(Executor(network, schedule(rows=rows), mode="skip"), PROMPTS, **options)
    executor = Executor(network, schedule(rows=rows), mode="jagged")
    for _ in range(2):  # recorded, replayed
        assert torch.equal(generate_tokens(executor, PROMPTS, **options), want)
    assert executor.report().graphs == schedule(rows=rows).patterns == 2  # everything, and what is held


# Keys


def keys_schedule(steps=8, every=4, rows="block") -> Schedule:
    made = schedule(steps, every, rows)
    return Schedule(made.units, made.active, made.flops, "constant", "keys", "toy", "sha256:0", {}, rows)


@pytest.mark.parametrize("padded", [False, True])
@torch.inference_mode()
def test_with_kept_keys_some_positions_are_all_that_is_looked_at(network, padded):
    """And it is exactly what computing everything else again would give, for nothing changes there."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(2, TINY.vocab_size, (2, 12), generator=generator)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, :3] = not padded
    named = {"attention_mask": mask if padded else None}
    rows = torch.arange(6, 10).expand(2, -1)
    by_units, by_keys = (Executor(network, one).start() for one in (schedule(rows="block"), keys_schedule()))
    for step in range(8):
        if step % 4:
            tokens[:, 5 + step % 4] = step  # written within the rows
        positions = torch.tensor([[7, 9], [6, 8]])
        want = by_units(tokens, rows=rows, positions=positions, **named)
        got = by_keys(tokens, rows=rows, positions=positions, **named)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("guidance", [0.0, 1.0])
def test_text_is_the_same_whether_updates_or_keys_are_kept(network, guidance):
    options = {"steps": 8, "length": 8, "block_length": 4, "guidance": guidance}
    updates = generate_tokens(Executor(network, schedule(rows="block")), PROMPTS, **options)
    executor = Executor(network, keys_schedule())
    assert torch.equal(generate_tokens(executor, PROMPTS, **options), updates)
    width, heads = len(PROMPTS[0]) + 8, TINY.n_kv_heads * TINY.head_dim
    rows = 2 * (2 if guidance else 1)
    assert executor.report().cache_bytes == TINY.n_layers * 2 * rows * width * heads * 4


def test_keys_are_refused_where_there_are_none(network):
    with pytest.raises(ScheduleError, match="the block or all"):
        keys_schedule(rows="written")
    with pytest.raises(UsageError, match="padded"):
        Executor(network, keys_schedule(), mode="padded")
    with pytest.raises(ScheduleError, match="language models only"):
        Executor(lambda x, residual: x, keys_schedule())


def test_the_default_for_text_in_blocks_keeps_keys():
    from tenuto.scheduling.rewrite import rewrite
    from tests.scheduling.test_policies import scored

    assert rewrite(scored(*[1.0] * 6), 16, every=4, blocks=2).keep == "keys"
    assert rewrite(scored(*[1.0] * 6), 16, every=4).keep == "update"
