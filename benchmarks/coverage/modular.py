"""Modular pipelines: their tests load small components from the hub, so they get those of the ordinary pipeline."""

from typing import Any

DONORS = {  # modular class -> ordinary pipeline whose test makes the components, where the name does not tell
    "Flux2KleinBaseModularPipeline": "Flux2KleinPipeline",
    "Krea2TurboModularPipeline": "Krea2Pipeline",
    "Cosmos3DistilledModularPipeline": "Cosmos3OmniPipeline",
    "QwenImageEditPlusModularPipeline": "QwenImageEditPlusPipeline",
    "HeliosPyramidModularPipeline": "HeliosPyramidPipeline",
}


def modular_pipeline(tester: Any) -> Any:
    """A modular pipeline with the components of the ordinary pipeline of the same name."""
    name = tester.pipeline_class.__name__
    donor = DONORS.get(name, name.replace("Modular", ""))
    given = _components(donor)
    pipe = tester.pipeline_blocks_class().init_pipeline()
    wanted = set(pipe.component_names)
    pipe.update_components(**{key: part for key, part in given.items() if key in wanted and part is not None})
    if not any(getattr(pipe, key, None) is not None for key in ("transformer", "unet")):
        raise LookupError(f"{donor}'s test makes no denoiser for it")
    return pipe


def _components(donor: str) -> dict[str, Any]:
    import importlib
    import sys

    from benchmarks.coverage.cases import pipeline_of
    from benchmarks.coverage.trial import _called

    for name in list(sys.modules):
        if not name.startswith("tests.pipelines."):
            continue
        for tester in vars(importlib.import_module(name)).values():
            made = pipeline_of(tester) if isinstance(tester, type) else None
            if made is not None and made.__name__ == donor and hasattr(tester, "get_dummy_components"):
                return dict(_called(tester().get_dummy_components))
    raise LookupError(f"its components are on the hub, and no fast test makes those of a {donor}")
