"""How sensitive each unit is, from its weights alone: the equations of the paper's appendix, and the score file.

q_attn = g(W_O) g(W_V) [1 + g(W_Q) g(W_K) / √d_h]      q_mlp = g(W_2) g(W_1)      q_conv = g(W_K)
q̃_ℓ = Σ_b q_b                                           Λ̂_ℓ = q̃_ℓ / (max_j q̃_j + ε)
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from tenuto import __version__
from tenuto.errors import CheckpointError, TenutoError, UsageError
from tenuto.files import check_fields, read_json, write_json
from tenuto.models.checkpoint import Tensors, digest, fingerprint
from tenuto.scheduling.units import MOST_FLOPS, ROLES, Component, Granularity, Matrix, Unit, block_of
from tenuto_lab.journal import Journal
from tenuto_lab.scoring.spectrum import ETA, K_RULE, Spectrum, spectrum

FORMAT = "tenuto.scores/1"
FORMATS = (FORMAT, "tenuto.scoring.scores/1")  # the second name stood in files for a while, for the same format
EPSILON = 1e-12  # ε of the normalisation

Progress = Callable[[str], object]  # called with the name of each finished tensor


def silent(key: str) -> None:
    """No progress report."""


@dataclass(frozen=True)
class ComponentScore:
    component: Component
    spectra: Mapping[str, Spectrum]  # by role
    q: float


@dataclass(frozen=True)
class UnitScore:
    name: str
    kind: str
    flops: float
    components: tuple[ComponentScore, ...]
    raw: float  # q̃_ℓ
    score: float  # Λ̂_ℓ


@dataclass(frozen=True)
class Scores:
    model: str
    architecture: str
    fingerprint: str
    units: tuple[UnitScore, ...]
    eta: float = ETA
    version: str = __version__
    granularity: Granularity = "branch"  # block: the units of a block share one score

    def save(self, path: str | Path) -> None:
        write_json(Path(path), to_json(self))


def component_score(component: Component, g: Mapping[str, float]) -> float:
    """q_b of one component from g(W) of each of its matrices."""
    if component.kind in ("attention", "cross_attention"):
        assert component.head_dim is not None
        return g["o"] * g["v"] * (1 + g["q"] * g["k"] / math.sqrt(component.head_dim))  # q_attn, q_xattn
    if component.kind == "mlp":
        return g["w2"] * g["w1"]  # q_mlp; a gated MLP's W_1 is gate and up stacked
    return g["kernel"]  # q_conv


def normalised(raw: Sequence[float]) -> list[float]:
    """Λ̂_ℓ = q̃_ℓ / (max_j q̃_j + ε)"""
    largest = max(raw)
    return [q / (largest + EPSILON) for q in raw]


def at_granularity(scores: Scores, granularity: Granularity) -> Scores:
    """The scores of single branches, or of blocks: then each unit has its block's q̃, the sum over all its branches."""
    if granularity not in get_args(Granularity):
        raise UsageError(f"The granularity is {' or '.join(get_args(Granularity))}, not {granularity!r}.")
    if granularity == scores.granularity:
        return scores
    if scores.granularity == "branch":
        own = [unit.raw for unit in scores.units]
    else:
        own = [sum(part.q for part in unit.components) for unit in scores.units]
    totals: dict[str, float] = {}
    for unit, q in zip(scores.units, own, strict=True):
        totals[block_of(unit.name)] = totals.get(block_of(unit.name), 0.0) + q  # q̃ = q_attn + q_mlp
    raw = own if granularity == "branch" else [totals[block_of(unit.name)] for unit in scores.units]
    units = (
        replace(unit, raw=q, score=score) for unit, q, score in zip(scores.units, raw, normalised(raw), strict=True)
    )
    return replace(scores, units=tuple(units), granularity=granularity)


def score_tensors(
    tensors: Tensors,
    units: Sequence[Unit],
    *,
    model: str,
    architecture: str,
    eta: float = ETA,
    device: str | torch.device | None = None,
    progress: Progress = silent,
    journal: Journal | None = None,
    granularity: Granularity = "branch",
) -> Scores:
    """Score every unit. Each tensor is read once, in stored order; only the tensors being scored are in memory.

    device   where the spectra are computed; None: where each tensor is
    journal  records finished tensors, so that an interrupted call can continue
    """
    if absent := [key for unit in units for key in unit.tensors() if key not in tensors.shapes]:
        raise CheckpointError(
            f"{model} lacks {len(absent)} tensor(s) that a {architecture} is scored by: {', '.join(absent[:3])}"
            f"{', …' if len(absent) > 3 else ''}."
        )
    spectra: dict[Matrix, Spectrum] = {}
    digests: dict[str, str] = {}
    for keys, matrices in _by_tensors(units, list(tensors.shapes)):
        name = " + ".join(keys)
        noted = journal.get(name) if journal else {}
        if set(noted) == {"digests", "spectra"} and len(noted["spectra"]) == len(matrices):
            found = noted["digests"]
            computed = [Spectrum(**{**one, "shape": tuple(one["shape"])}) for one in noted["spectra"]]
        else:
            found, computed = _score_group(tensors, keys, matrices, eta, device)
            if journal:
                journal.note(name, {"digests": found, "spectra": [asdict(one) for one in computed]})
        digests.update(found)
        spectra.update(zip(matrices, computed, strict=True))
        for key in keys:
            progress(key)
    scored = [[_component(component, spectra) for component in unit.components] for unit in units]
    raw = [sum(component.q for component in components) for components in scored]  # q̃_ℓ = Σ_b q_b
    scores = Scores(
        model=model,
        architecture=architecture,
        fingerprint=fingerprint(digests),
        units=tuple(
            UnitScore(unit.name, unit.kind, unit.flops, tuple(components), q, score)
            for unit, components, q, score in zip(units, scored, raw, normalised(raw), strict=True)
        ),
        eta=eta,
    )
    return at_granularity(scores, granularity)


def _score_group(
    tensors: Tensors, keys: Sequence[str], matrices: Sequence[Matrix], eta: float, device: str | torch.device | None
) -> tuple[dict[str, str], list[Spectrum]]:
    """The digests of some stored tensors, and the spectra of the matrices made from these tensors."""
    parts = [tensors.read(key) for key in keys]
    digests = {key: digest(part) for key, part in zip(keys, parts, strict=True)}
    stacked = torch.cat([part.flatten(1) for part in parts]) if len(parts) > 1 else parts[0]
    del parts
    if device is not None:
        stacked = stacked.to(device)
    return digests, [spectrum(_part(stacked, matrix), eta, str(matrix)) for matrix in matrices]


def _component(component: Component, spectra: Mapping[Matrix, Spectrum]) -> ComponentScore:
    own = {role: spectra[matrix] for role, matrix in component.matrices.items()}
    return ComponentScore(component, own, component_score(component, {role: own[role].g for role in own}))


def _by_tensors(units: Iterable[Unit], order: list[str]) -> list[tuple[tuple[str, ...], list[Matrix]]]:
    """The matrices to compute, grouped by the stored tensors that they need, in stored order."""
    groups: dict[tuple[str, ...], list[Matrix]] = {}
    for unit in units:
        for component in unit.components:
            for matrix in component.matrices.values():
                groups.setdefault(matrix.keys, []).append(matrix)
    position = {key: i for i, key in enumerate(order)}
    return sorted(groups.items(), key=lambda group: max(position[key] for key in group[0]))


def _part(tensor: Tensor, matrix: Matrix) -> Tensor:
    if matrix.part is None:
        return tensor
    index, of = matrix.part
    return tensor.chunk(of)[index]


def to_json(scores: Scores) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "tenuto_version": scores.version,
        "model": scores.model,
        "architecture": scores.architecture,
        "fingerprint": scores.fingerprint,
        "eta": scores.eta,
        "epsilon": EPSILON,
        "k_rule": K_RULE,
        **({} if scores.granularity == "branch" else {"granularity": scores.granularity}),
        "units": [
            {
                "name": unit.name,
                "kind": unit.kind,
                "flops": unit.flops,
                "raw": unit.raw,
                "score": unit.score,
                "components": [
                    {
                        "kind": scored.component.kind,
                        "head_dim": scored.component.head_dim,
                        "q": scored.q,
                        "matrices": {
                            role: {"tensors": list(matrix.keys), "part": matrix.part, **asdict(scored.spectra[role])}
                            for role, matrix in scored.component.matrices.items()
                        },
                    }
                    for scored in unit.components
                ],
            }
            for unit in scores.units
        ],
    }


def load_scores(path: str | Path) -> Scores:
    """Read a score file strictly."""
    return from_json(read_json(Path(path), "score file"), str(path))


def from_json(record: dict[str, Any], where: str) -> Scores:
    if record.get("format") not in FORMATS:
        raise TenutoError(
            f"{where} is not a score file this version reads: format {record.get('format')!r}, not {FORMAT!r}."
        )
    granularity = record.get("granularity", "branch")  # files of earlier versions do not say it
    if granularity not in get_args(Granularity):
        raise TenutoError(f"{where}: the granularity is {' or '.join(get_args(Granularity))}, not {granularity!r}.")
    check_fields(
        {key: value for key, value in record.items() if key != "granularity"},
        where,
        {"format": str, "tenuto_version": str, "model": str, "architecture": str, "fingerprint": str}
        | {"eta": float, "epsilon": float, "k_rule": str, "units": list},
    )
    if not record["units"]:
        raise TenutoError(f"{where} lists no units.")
    return Scores(
        model=record["model"],
        architecture=record["architecture"],
        fingerprint=record["fingerprint"],
        units=tuple(_unit_from_json(unit, f"{where}, unit {i + 1}") for i, unit in enumerate(record["units"])),
        eta=record["eta"],
        version=record["tenuto_version"],
        granularity=granularity,
    )


def _unit_from_json(record: object, where: str) -> UnitScore:
    unit = check_fields(
        record, where, {"name": str, "kind": str, "flops": float, "raw": float, "score": float, "components": list}
    )
    if not 0 <= unit["score"] <= 1:
        raise TenutoError(f"{where}: a score lies in [0, 1], not at {unit['score']}.")
    if unit["kind"] not in (*ROLES, "group"):
        raise TenutoError(f"{where}: a unit's kind is one of {', '.join(ROLES)} or group, not {unit['kind']!r}.")
    if not 0 < unit["flops"] <= MOST_FLOPS:
        raise TenutoError(f"{where}: a cost is a positive number up to {MOST_FLOPS:g}, not {unit['flops']}.")
    components = tuple(_component_from_json(part, f"{where} ({unit['name']})") for part in unit["components"])
    return UnitScore(unit["name"], unit["kind"], unit["flops"], components, unit["raw"], unit["score"])


def _component_from_json(record: object, where: str) -> ComponentScore:
    part = check_fields(record, where, {"kind": str, "head_dim": (int, type(None)), "q": float, "matrices": dict})
    if part["kind"] not in ROLES:
        raise TenutoError(f"{where}: a component's kind is one of {', '.join(ROLES)}, not {part['kind']!r}.")
    matrices, spectra = {}, {}
    statistics: dict[str, type | tuple[type, ...]] = {field.name: float for field in fields(Spectrum)}
    statistics |= {"shape": list, "k": int}
    for role, stored in part["matrices"].items():
        check_fields(stored, f"{where}, {role}", {"tensors": list, "part": (list, type(None)), **statistics})
        matrices[role] = Matrix(tuple(stored["tensors"]), tuple(stored["part"]) if stored["part"] else None)
        values = {name: stored[name] for name in statistics}
        spectra[role] = Spectrum(**{**values, "shape": tuple(stored["shape"])})
    try:
        component = Component(part["kind"], matrices, part["head_dim"])
    except ValueError as error:
        raise TenutoError(f"{where}: {error}.") from error
    return ComponentScore(component, spectra, part["q"])
