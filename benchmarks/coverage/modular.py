"""Modular pipelines: their tests load small components from the hub, so they get those of the ordinary pipeline."""

from typing import Any

from benchmarks.coverage.neighbours import called, test_of

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
    given = dict(called(test_of(donor).get_dummy_components))
    pipe = tester.pipeline_blocks_class().init_pipeline()
    wanted = set(pipe.component_names)
    pipe.update_components(**{key: part for key, part in given.items() if key in wanted and part is not None})
    if not any(getattr(pipe, key, None) is not None for key in ("transformer", "unet")):
        raise LookupError(f"{donor}'s test makes no denoiser for it")
    return pipe
