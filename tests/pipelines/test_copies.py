"""Enabled pipelines that are copied, pickled, or made of other pipelines."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline, StableDiffusionImg2ImgPipeline
from diffusers.configuration_utils import ConfigMixin

import tenuto
from tenuto.errors import UsageError
from tests.helpers.pipelines import QUIET, attributes, counted, draw, other, picture, tiny

pytestmark = QUIET


@pytest.fixture
def pipe() -> DiffusionPipeline:
    return tiny("sd1")


def test_a_deep_copy_of_an_enabled_pipeline_is_not_enabled(pipe: DiffusionPipeline) -> None:
    full = draw(pipe, "sd1")
    tenuto.enable(pipe, every=4)
    held = draw(pipe, "sd1")
    twin = copy.deepcopy(pipe)
    with counted(twin) as counts:
        assert torch.equal(draw(twin, "sd1"), full)
    assert set(counts.values()) == {12}
    with pytest.raises(UsageError, match="is not enabled"):
        tenuto.summary(twin)
    assert torch.equal(draw(pipe, "sd1"), held)
    with tenuto.accelerated(twin, every=4):  # which is a pipeline of its own
        assert torch.equal(draw(twin, "sd1"), held)
        tenuto.disable(pipe)
        assert torch.equal(draw(twin, "sd1"), held)
        assert torch.equal(draw(pipe, "sd1"), full)
    assert torch.equal(draw(twin, "sd1"), full)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda pipe: pickle.loads(pickle.dumps(pipe))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("family", ["sd1", "flux"])
def test_a_copy_made_while_single_units_are_held_can_be_enabled(family: str, copied: Any) -> None:
    pipe = tiny(family)
    full, before = draw(pipe, family), attributes(pipe)
    tenuto.enable(pipe, every=4, keep="branch")
    held = draw(pipe, family)
    twin = copied(pipe)
    assert torch.equal(draw(twin, family), full)
    with tenuto.accelerated(twin, every=4, keep="branch"):
        assert torch.equal(draw(twin, family), held)
    assert torch.equal(draw(twin, family), full)
    assert torch.equal(draw(pipe, family), held)
    tenuto.disable(pipe)
    assert attributes(pipe) == before and torch.equal(draw(pipe, family), full)


def test_an_enabled_pipeline_survives_pickling_and_comes_back_as_it_was_before(pipe: DiffusionPipeline) -> None:
    full = draw(pipe, "sd1")
    tenuto.enable(pipe, evaluations=3)
    held = draw(pipe, "sd1")
    back = pickle.loads(pickle.dumps(pipe))
    assert torch.equal(draw(back, "sd1"), full)
    with tenuto.accelerated(back, evaluations=3):
        assert torch.equal(draw(back, "sd1"), held)
    stream = io.BytesIO()
    torch.save(pipe.unet, stream)
    stream.seek(0)
    alone = torch.load(stream, weights_only=False)
    with torch.no_grad():
        call = {"encoder_hidden_states": torch.zeros(1, 5, 16)}
        sample, time = torch.zeros(1, 4, 8, 8), torch.tensor(3)
        assert torch.equal(alone(sample, time, **call).sample, pipe.unet(sample, time, **call).sample)
    assert torch.equal(draw(pipe, "sd1"), held)


class Combined(DiffusionPipeline):
    """A pipeline made of pipelines, as Kandinsky's combined ones: the second goes on from the first one's picture."""

    def __init__(self, unet: Any, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)
        self.prior_pipe = tiny("sd1")
        self.decoder_pipe = other(StableDiffusionImg2ImgPipeline)

    def __call__(self, steps: int = 24) -> Any:
        image = draw(self.prior_pipe, "sd1", steps=steps)
        return draw(self.decoder_pipe, "sd1", steps=2 * steps, image=image, strength=0.5)


def combined() -> Any:
    first = tiny("sd1")
    return Combined(first.unet, first.scheduler)


def test_the_pipelines_inside_a_pipeline_are_enabled() -> None:
    pipe = combined()
    inner = [pipe.prior_pipe, pipe.decoder_pipe]
    full, before = pipe(), [attributes(one) for one in inner]
    tenuto.enable(pipe, 1.0)
    assert torch.equal(pipe(), full)
    tenuto.enable(pipe, evaluations=7)
    with counted(inner[0]) as first, counted(inner[1]) as second:
        held = pipe()
    assert set(first.values()) == set(second.values()) == {7}
    assert tenuto.summary(pipe).computed == 7
    tenuto.configure(pipe, evaluations=9)
    assert not torch.equal(pipe(), held)
    for _ in range(2):
        tenuto.disable(pipe)
        assert [attributes(one) for one in inner] == before
    assert torch.equal(pipe(), full)


def test_a_wrong_setting_enables_none_of_them() -> None:
    pipe = combined()
    full, before = pipe(), [attributes(one) for one in (pipe.prior_pipe, pipe.decoder_pipe)]
    with pytest.raises(UsageError):
        tenuto.enable(pipe, 0.0)
    pipe.decoder_pipe.scheduler = None  # the second cannot be served, after the first was
    pipe.decoder_pipe.register_to_config(scheduler=(None, None))
    with pytest.raises(UsageError, match="no scheduler"):
        tenuto.enable(pipe, evaluations=3)
    assert attributes(pipe.prior_pipe) == before[0]
    assert full.isfinite().all()


class Modular(ConfigMixin):
    """Has what a modular pipeline has: components, and no progress bar."""

    config_name = "modular.json"

    def __init__(self, pipe: DiffusionPipeline) -> None:
        self.components = {"unet": pipe.unet, "scheduler": pipe.scheduler, "vae": pipe.vae}

    def __getattr__(self, name: str) -> Any:
        try:
            return vars(self)["components"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __call__(self, steps: int) -> Any:
        x, words = picture().mean(dim=1, keepdim=True).expand(1, 4, 8, 8), torch.ones(1, 5, 16)
        self.scheduler.set_timesteps(steps)
        with torch.no_grad():
            for t in self.scheduler.timesteps:
                found = self.unet(x, t, encoder_hidden_states=words).sample
                x = self.scheduler.step(found, t, x, return_dict=False)[0]
        return x


def test_a_modular_pipeline_is_served(pipe: DiffusionPipeline) -> None:
    modular = Modular(pipe)
    full = modular(24)
    tenuto.enable(modular, 1.0)
    assert torch.equal(modular(24), full)
    tenuto.enable(modular, evaluations=12)
    with counted(pipe) as counts:
        held = modular(24)
        assert torch.equal(modular(24), held)
    assert set(counts.values()) == {24} and tenuto.summary(modular).computed == 12
    assert 0 < float((held - full).abs().max()) < 0.2 * float(full.abs().max())
    tenuto.disable(modular)
    assert torch.equal(modular(24), full)
