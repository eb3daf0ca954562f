"""`tenuto` and its commands. Each imports what it needs when it runs, so that --help answers at once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tenuto import __version__

app = typer.Typer(
    name="tenuto",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Faster diffusion models without training: hold the residual branches that need not be computed again.\n\n"
    "Try [bold]tenuto demo[/] first.",
)

MODEL = "A shipped model (see `tenuto models`), a checkpoint file, a checkpoint directory, or a hub id (owner/name)."


class Policy(StrEnum):
    refresh = "refresh"
    rewrite = "rewrite"
    lifetimes = "lifetimes"
    noise = "noise"
    anchors = "anchors"
    allocated = "allocated"


class Rows(StrEnum):
    none = "none"
    written = "written"
    block = "block"
    generated = "generated"


class Ranking(StrEnum):
    spectral = "spectral"
    within = "spectral within type"
    random = "random"
    early = "early"
    late = "late"
    cheap = "cheap"


class Reuse(StrEnum):
    hold = "hold"
    linear = "linear"
    quadratic = "quadratic"
    cubic = "cubic"


class Hold(StrEnum):
    output = "output"
    branch = "branch"
    update = "update"


class Mode(StrEnum):
    auto = "auto"
    eager = "eager"
    skip = "skip"
    padded = "padded"
    jagged = "jagged"


class Solver(StrEnum):
    ddim = "ddim"
    dpm = "dpm++"


BY_HAND = "Instead of what the policy would choose"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, …")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tenuto {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command(epilog="Example: tenuto demo --out demo")
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the pictures and report.html.")] = Path("demo"),
    budget: Annotated[float, typer.Option(help="Share of the work to do.")] = 0.25,
    steps: Annotated[int, typer.Option(help="Denoising steps.")] = 50,
    per_class: Annotated[int, typer.Option(help="Pictures of each of the ten classes.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**53, help="Seed of the first picture; the others count up.")] = 0,
    as_json: AsJson = False,
) -> None:
    """See it work: the shipped model, the same pictures with and without a schedule, a page to look at."""
    from tenuto.cli.demo import run

    run(out, budget=budget, steps=steps, per_class=per_class, seed=seed, as_json=as_json)


@app.command(epilog="Example: tenuto score tiny-dit -o scores.json")
def score(
    model: Annotated[str, typer.Argument(help=MODEL)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the score file here.")] = None,
    eta: Annotated[float, typer.Option(help="η, the regulariser of the spectral concentration ratio.")] = 1e-6,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Score every unit of a checkpoint from its weights, tensor by tensor; no weights are loaded into a model."""
    from tenuto.cli.decide import score_command

    score_command(model, output, eta, device, as_json)


@app.command(
    epilog="Example: tenuto schedule tiny-dit --steps 50 --speedup 3 -o schedule.json"
    " · tenuto schedule tiny-llada --steps 64 --blocks 4 --budget 0.5"
)
def schedule(
    source: Annotated[str, typer.Argument(metavar="SCORES_OR_MODEL", help="A score file, or a model as for `score`.")],
    steps: Annotated[int, typer.Option(help="Network evaluations of one generation.")],
    budget: Annotated[
        float | None,
        typer.Option(help="Share of unit-steps to compute, as nearly as steps allow. Default: 0.25."),
    ] = None,
    speedup: Annotated[
        float | None, typer.Option(help="How many times as fast as full inference it should be; instead of a budget.")
    ] = None,
    blocks: Annotated[int | None, typer.Option(help="Text only: blocks that it is written in. Default: 1.")] = None,
    policy: Annotated[
        Policy | None,
        typer.Option(
            help="How to decide. Default: refresh for pictures, rewrite for text; lifetimes is the paper's, which "
            "holds for good; the others are there to be compared (docs/schedules.md)."
        ),
    ] = None,
    every: Annotated[
        int | None, typer.Option(help="Refresh period in steps; instead of a budget.", rich_help_panel=BY_HAND)
    ] = None,
    opening: Annotated[
        bool | None,
        typer.Option(help="Compute everything once more half-way to the second refresh.", rich_help_panel=BY_HAND),
    ] = None,
    closing: Annotated[
        int | None, typer.Option(help="How many of the last steps compute everything.", rich_help_panel=BY_HAND)
    ] = None,
    reuse: Annotated[
        Reuse | None,
        typer.Option(help="How held units are reused: as they were, or extrapolated.", rich_help_panel=BY_HAND),
    ] = None,
    hold: Annotated[
        Hold | None,
        typer.Option(
            help="What is held: the network's output, or of each unit the update after its gate or the branch before.",
            rich_help_panel=BY_HAND,
        ),
    ] = None,
    correction: Annotated[
        bool | None,
        typer.Option(help="Make up at a refresh for what was extrapolated since the last.", rich_help_panel=BY_HAND),
    ] = None,
    rows: Annotated[
        Rows | None,
        typer.Option(help="Text only: positions that held units are computed at.", rich_help_panel=BY_HAND),
    ] = None,
    held: Annotated[
        float | None,
        typer.Option(help="Text only: share of the units that are ever held.", rich_help_panel=BY_HAND),
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(help="Of lifetimes: their scale τ (default 1), instead of a budget.", rich_help_panel=BY_HAND),
    ] = None,
    min_lifetime: Annotated[
        float | None,
        typer.Option(help="Of lifetimes: the shortest, as a share of the steps (0.1).", rich_help_panel=BY_HAND),
    ] = None,
    ranking: Annotated[
        Ranking | None,
        typer.Option(help="Of anchors and allocated: which units deserve more.", rich_help_panel=BY_HAND),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(help="Of anchors: share of the FLOPs that is refreshed twice as often.", rich_help_panel=BY_HAND),
    ] = None,
    evenness: Annotated[
        float | None,
        typer.Option(help="Of noise: 1 places refreshes by steps, 0 by noise levels.", rich_help_panel=BY_HAND),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the schedule here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Decide which unit is computed at which step, and show the map."""
    from tenuto.cli.decide import schedule_command

    schedule_command(
        source,
        output,
        as_json,
        steps=steps,
        budget=budget,
        speedup=speedup,
        policy=policy and policy.value,
        blocks=blocks,
        every=every,
        opening=opening,
        closing=closing,
        reuse=reuse and reuse.value,
        hold=hold and hold.value,
        correction=correction,
        rows=rows and rows.value,
        held=held,
        tau=tau,
        min_lifetime=min_lifetime,
        ranking=ranking and ranking.value,
        share=share,
        evenness=evenness,
    )


@app.command(
    epilog='Example: tenuto generate tiny-dit --schedule schedule.json --class 9 --class "Bag" -o pictures'
    ' · tenuto generate tiny-llada --prompt "Tom has 12 apples and buys 7 more. How many apples? Answer:" --length 16'
)
def generate(
    model: Annotated[str, typer.Argument(help=MODEL)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Directory for what is made.")] = None,
    schedule: Annotated[Path | None, typer.Option(help="A schedule file; without one, everything is computed.")] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="A class by number or name; repeat for more. Default: one of each."),
    ] = None,
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", help="A caption to draw, or text to write after; repeat for more.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many of each.")] = 1,
    steps: Annotated[
        int | None, typer.Option(help="Network evaluations. Default: the schedule's, else 50; for text one a token.")
    ] = None,
    guidance: Annotated[
        float | None,
        typer.Option(help="Classifier-free guidance. Default: 1.5 (classes), 3 (captions), 0 (text)."),
    ] = None,
    solver: Annotated[Solver | None, typer.Option(help="How to step from noise to picture. Default: ddim.")] = None,
    length: Annotated[int | None, typer.Option(help="Text only: how many tokens to write. Default: 64.")] = None,
    block_length: Annotated[
        int | None, typer.Option(help="Text only: tokens finished before the next are begun. Default: all at once.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Text only: 0, the default, takes the likeliest token.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Text only: wrap prompts by the model's chat template.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**53, help="Seed of the first; the others count up.")] = 0,
    batch: Annotated[int, typer.Option(help="How many at a time; does not change them.")] = 16,
    vae: Annotated[Path | None, typer.Option(help="A diffusers VAE directory, for latent models.")] = None,
    mode: Annotated[
        Mode,
        typer.Option(help="How the schedule is run: CUDA graphs (jagged) on a GPU and skipping elsewhere, or as said."),
    ] = Mode.auto,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the network's branches first.")] = False,
    memory: Annotated[
        int | None,
        typer.Option(min=0, help="MiB that may be kept of a batch; a schedule is made to fit, and says what it lost."),
    ] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Make pictures or text, with a schedule or without."""
    from tenuto.cli.generate import Request, run

    run(
        Request(
            model=model,
            output=output,
            schedule_path=schedule,
            classes=classes or [],
            prompts=prompts or [],
            count=count,
            steps=steps,
            guidance=guidance,
            solver=solver.value if solver else None,
            length=length,
            block_length=block_length,
            temperature=temperature,
            chat=chat,
            seed=seed,
            batch=batch,
            vae=vae,
            mode=mode.value,
            compiled=compiled,
            memory=memory,
            device=device,
            as_json=as_json,
        )
    )


@app.command(
    epilog="Example: tenuto chat tiny-llada --length 16"
    ' · tenuto chat tiny-llada --prompt "close: ([{ ->" --length 8 --budget 0.25'
)
def chat(
    model: Annotated[str, typer.Argument(help=MODEL)],
    prompt: Annotated[str | None, typer.Option(help="Answer this and end.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Share of unit-steps to compute. Default: 0.5; /full computes all.")
    ] = None,
    speedup: Annotated[
        float | None, typer.Option(help="How many times as fast as full inference it should be; instead of a budget.")
    ] = None,
    schedule: Annotated[Path | None, typer.Option(help="A schedule file, instead of a budget.")] = None,
    length: Annotated[int, typer.Option(min=1, help="Tokens of an answer, at most.")] = 64,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Network evaluations. Default: the schedule's, else one a token.")
    ] = None,
    block_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens finished before the next are begun. Default: the schedule's, else 32."),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Choose among the likeliest tokens that together are as likely as this.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**53, help="Of each answer.")] = 0,
    device: Device = "cpu",
) -> None:
    """Talk with a language model, and see its answers being written. Lines are read from a pipe, too."""
    from tenuto.cli.chat import run

    options = {"length": length, "steps": steps, "block_length": block_length}
    sampling = {"temperature": temperature, "top_p": top_p, "seed": seed}
    run(model, prompt, budget, speedup, schedule, device, **options, **sampling)


@app.command(epilog="Example: tenuto check tiny-dit --schedule schedule.json --png errors.png")
def check(
    model: Annotated[str, typer.Argument(help=MODEL)],
    schedule: Annotated[Path, typer.Option(help="The schedule file to check.")],
    wanted: Annotated[
        list[str] | None, typer.Option("--for", help="A class, caption or prompt to try; repeat for more.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many, where --for does not say.")] = 4,
    length: Annotated[int, typer.Option(min=1, help="Text only: how many tokens to write.")] = 64,
    seed: Annotated[int, typer.Option(min=0, max=2**53, help="Seed of the first.")] = 0,
    png: Annotated[Path | None, typer.Option(help="Draw how far off each unit was at each step.")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Say whether a schedule is safe: a few samples with it and without, compared. Ends with 1 if it is not."""
    from tenuto.cli.check import run

    run(model, schedule, wanted or [], samples, length, seed, png, device, as_json)


@app.command(epilog="Example: tenuto frontier tiny-dit --samples 8 --png frontier.png")
def frontier(
    model: Annotated[str, typer.Argument(help=MODEL)],
    steps: Annotated[list[int] | None, typer.Option(help="Of the full run; repeat for more. Default: 50; 64.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Of each seed.")] = 8,
    seeds: Annotated[int, typer.Option(min=1, help="Rounds, each from other noise.")] = 3,
    budgets: Annotated[
        list[float] | None, typer.Option("--budget", help="Shares of the work to try; repeat. Default: five of them.")
    ] = None,
    rivals: Annotated[bool, typer.Option(help="Measure fewer steps and other cachers, too.")] = True,
    converged: Annotated[
        int, typer.Option(min=0, help="Samples of each seed to draw in 250, 500 and 1,000 steps, too.")
    ] = 0,
    block_length: Annotated[int, typer.Option(min=1, help="Text only: tokens finished before the next.")] = 32,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the figures here, as JSON.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw quality against work and time.")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure quality against work and time, for every policy and its rivals, on this model. Takes minutes."""
    from tenuto.cli.frontier import run

    run(model, steps, samples, seeds, budgets, rivals, converged, block_length, output, png, device, as_json)


RESULTS = Path("results") / "experiments"


@app.command(
    epilog="Example: tenuto experiment rankings --model tiny-dit --samples 20"
    " · tenuto experiment all --device cuda --resume"
)
def experiment(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME…",
            help="operating-points, rankings, execution, language, horizons, input-aware, oracle, comparisons, "
            "freeze-error, audit, pareto, maps, failures, freezing; or all.",
        ),
    ],
    models: Annotated[
        list[str] | None, typer.Option("--model", help="A model as for `score`; repeat. Default: the reference models.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint to do it on instead, of full size for example.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Of each seed. Default: the experiment's own, for a GPU.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Rounds, each from other noise. Default: mostly 3.")] = None,
    steps: Annotated[int | None, typer.Option(min=4, help="Of the full run. Default: 50; 64 for text.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted one stopped.")] = False,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Directory for the results: a JSON, a table and a figure of each.")
    ] = RESULTS,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Do the paper's experiments: its figures, and what is measured here, side by side."""
    from tenuto.cli.experiment import run

    run(names, models, checkpoint, samples, seeds, steps, resume, output, device, as_json)


@app.command(epilog="Example: tenuto results --html results.html")
def results(
    folder: Annotated[Path, typer.Argument(help="Where `tenuto experiment` wrote.")] = RESULTS,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page, in Markdown.")] = Path("docs/results.md"),
    html: Annotated[Path | None, typer.Option(help="A self-contained page, too.")] = None,
) -> None:
    """Write one page of what the experiments found."""
    from tenuto.cli.experiment import page

    page(folder, output, html)


@app.command(epilog="Example: tenuto bench tiny-dit --batch 16")
def bench(
    model: Annotated[str, typer.Argument(help=MODEL)],
    batch: Annotated[int, typer.Option(min=1, help="Samples in an evaluation; guidance takes two for a picture.")] = 16,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Text only: tokens in a sequence. Default: the most.")
    ] = None,
    budget: Annotated[float, typer.Option(min=0.1, max=1, help="Of the lifetime schedule that is timed.")] = 0.35,
    steps: Annotated[int, typer.Option(min=10, help="Of that schedule; the others are half as long.")] = 50,
    repeats: Annotated[int, typer.Option(min=1, help="Generations timed for each row; the median counts.")] = 3,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the figures here, as JSON.")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Time a model here: full, and under schedules, by every way of running them."""
    from tenuto.cli.bench import run

    run(model, batch, tokens, budget, steps, repeats, output, device, as_json)


@app.command(epilog="Example: tenuto models --json")
def models(as_json: AsJson = False) -> None:
    """List the architectures: what is held of each, what stays live, and the models that ship."""
    from tenuto.cli.models import run

    run(as_json)


@app.command(epilog="Example: tenuto show schedule.json --png map.png")
def show(
    file: Annotated[Path, typer.Argument(help="A score file, a schedule, or what `tenuto frontier -o` wrote.")],
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page here.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at a score file, a schedule or a frontier: a table in the terminal, or a page, or a picture."""
    from tenuto.cli.show import run

    run(file, html, png, as_json)


@app.command(epilog="Example: tenuto push schedule.json me/sdxl-50-steps --base-model owner/sdxl")
def push(
    file: Annotated[Path, typer.Argument(help="A schedule or a score file.")],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="On the hub; made if it is not there.")],
    base_model: Annotated[
        str | None,
        typer.Option(help="Hub id of the weights it was made from. Default: the model's name, where that is one."),
    ] = None,
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="Of a repository that has to be made.")
    ] = None,
    message: Annotated[str | None, typer.Option("-m", "--message", help="Of the commit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Share a schedule or a score file on the Hugging Face hub, with a card that shows it.

    The token is the one in HF_TOKEN, or of `hf auth login`.
    """
    from tenuto.cli.hub import push as run

    run(file, repository, base_model, private, message, as_json)


@app.command(epilog="Example: tenuto pull me/sdxl-50-steps@main -o pulled")
def pull(
    source: Annotated[str, typer.Argument(metavar="OWNER/NAME[@REVISION]", help="A repository on the hub.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory for schedule.json and scores.json.")],
    as_json: AsJson = False,
) -> None:
    """Fetch a schedule or a score file from the Hugging Face hub; with HF_HUB_OFFLINE=1, from its cache.

    A schedule that was made from other weights than your model's is refused when you use it, by its fingerprint.
    """
    from tenuto.cli.hub import pull as run

    run(source, output, as_json)


@app.command(epilog="Example: tenuto doctor --json")
def doctor(
    network: Annotated[bool, typer.Option("--network", help="Ask the hub whether it answers, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at this machine: versions, GPU, what is available, and what to install for the rest.

    Ends with 1 if something is broken; what is merely not installed is not.
    """
    from tenuto.cli.doctor import run

    run(network, as_json)


@app.command(epilog="Example: tenuto ui tiny-sdxl --port 7861")
def ui(
    model: Annotated[str, typer.Argument(help=MODEL)] = "tiny-dit",
    host: Annotated[str, typer.Option(help="Address to serve on; 0.0.0.0 lets your network in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to serve on.")] = 7860,
    share: Annotated[bool, typer.Option("--share", help="Also make a public link, through gradio's servers.")] = False,
    results: Annotated[
        Path | None, typer.Option(help="Folder with frontier.json and experiments/. Default: results.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Open a page: the map of a schedule, pictures or text with it and without, the frontier, the experiments.

    Nothing leaves this machine unless --share is given. Needs gradio: pip install 'tenuto\\[ui]'.
    """
    from tenuto.cli.ui import run

    run(model, host, port, share, results, device)
