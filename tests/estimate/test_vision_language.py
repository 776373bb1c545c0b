"""Vision-language models are estimated and planned: they count image tokens and read the sizes of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from accelera import capture, estimate, plan_offload
from accelera.capture import peak_live_bytes

TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 7,
}
IMAGE = 7

Case = tuple[torch.nn.Module, dict[str, Any]]


def tokens(images: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(10, 400, (1, 48), generator=torch.Generator().manual_seed(1))
    ids[:, 2 : 2 + images] = IMAGE
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def llava() -> Case:
    vision = transformers.CLIPVisionConfig(**VISION)
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=vision,
        image_token_index=IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=16,
    )
    model = transformers.LlavaForConditionalGeneration(config)
    return model, {**tokens(16), "pixel_values": torch.randn(1, 3, 28, 28)}


def idefics() -> Case:
    config = transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(**TEXT, pad_token_id=0),
        vision_config=VISION,
        image_token_id=IMAGE,
        scale_factor=2,
    )
    model = transformers.Idefics3ForConditionalGeneration(config)
    return model, {**tokens(4), "pixel_values": torch.randn(1, 1, 3, 28, 28)}


def qwen() -> Case:
    rope = {"rope_type": "default", "type": "mrope", "mrope_section": [2, 3, 3]}
    vision = {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 64,
        "num_heads": 2,
        "mlp_ratio": 2,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    config = transformers.Qwen2VLConfig(
        text_config=dict(TEXT, rope_scaling=rope),
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=8,
        vision_start_token_id=9,
    )
    text_inputs = tokens(4)
    more = {
        "pixel_values": torch.randn(16, 96),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (text_inputs["input_ids"] == IMAGE).int(),
    }
    return transformers.Qwen2VLForConditionalGeneration(config), {**text_inputs, **more}


@pytest.mark.parametrize("build", [llava, idefics, qwen])
def test_numbers_are_close_to_those_of_a_real_run(build: Callable[[], Case]) -> None:
    model, inputs = build()
    model.eval()
    weights = sum(each.nbytes for each in model.parameters())
    real, fake = (capture(model, inputs, train=False, fake=fake) for fake in (False, True))
    # transformers skips masks that hide nothing only where it may read their values.
    assert peak_live_bytes(fake) == pytest.approx(peak_live_bytes(real), rel=0.05)
    phase = estimate(model, inputs, dtypes=["float32"], train=False).phases[0]
    assert weights <= phase.peak_bytes <= 3 * weights
    assert plan_offload(model, inputs, "32MiB", train=False).peak_bytes["ram"] <= 32 << 20
