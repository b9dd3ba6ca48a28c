"""What models of transformers are called with: words, images, sounds, series, some together."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from covered.small_configs import parts_of

Inputs = dict[str, Any]

BATCH = 2
WORDS = 32
#: Samples of sound: a second at 16 kHz.
SAMPLES = 16_000
FRAMES = 400
#: Pixels of a side: small, and as large as most models are trained with.
IMAGE, LARGE_IMAGE = 64, 224


def figure(config: Any, *names: str, default: int) -> int:
    """The first of these figures that a configuration or a part of it has."""
    for name in names:
        for part in parts_of(config):
            value = getattr(part, name, None)
            if isinstance(value, list | tuple) and value and isinstance(value[0], int):
                value = value[0]
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return default


def inputs_of(model: Any) -> Iterator[Inputs]:
    """Calls that a model may take, on the CPU: the fullest first."""
    taken = inspect.signature(model.forward).parameters
    for call in _proposals(model, set(taken)):
        filled = _with_needed(model, taken, call)
        unknown = [name for name in filled if name not in taken and not _takes_any(taken)]
        if filled and not unknown:
            yield filled


def _takes_any(taken: Any) -> bool:
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())


def _proposals(model: Any, taken: set[str]) -> Iterator[Inputs]:
    config = model.config
    if "past_values" in taken:
        yield from _series(config, taken)
    if "states" in taken and "returns_to_go" in taken:
        yield _decisions(config)
    words = _words(config, taken) if "input_ids" in taken else {}
    for image in _images(config, taken):
        if "input_ids" in taken:
            with_places = _words_with_images(model, image)
            if with_places is not None:
                yield {**words, **with_places}
            yield {**words, **image}
        yield image
    for sound in _sounds(config, taken):
        if words:
            yield {**words, **sound}
        yield sound
    if words:
        yield words
        yield {"input_ids": words["input_ids"]}
    yield from _others(config, taken)


def random_text(config: Any, *, length: int = WORDS) -> torch.Tensor:
    length = min(length, figure(config, "max_position_embeddings", default=length))
    limit = max(10, min(figure(config, "vocab_size", default=100), 90))
    return torch.randint(5, limit, (BATCH, length))


def _words(config: Any, taken: set[str]) -> Inputs:
    call: Inputs = {"input_ids": random_text(config)}
    if "attention_mask" in taken:
        call["attention_mask"] = torch.ones_like(call["input_ids"])
    if "decoder_input_ids" in taken and getattr(config, "is_encoder_decoder", False):
        call["decoder_input_ids"] = random_text(config)
    if "bbox" in taken:
        call["bbox"] = torch.ones(BATCH, WORDS, 4, dtype=torch.long)
    if "visual_feats" in taken:
        call["visual_feats"] = torch.rand(BATCH, 8, figure(config, "visual_feat_dim", default=64))
        call["visual_pos"] = torch.rand(BATCH, 8, 4)
    return call


def _images(config: Any, taken: set[str]) -> Iterator[Inputs]:
    channels = figure(config, "num_channels", "in_channels", "in_chans", default=3)
    side = figure(config, "image_size", "img_size", "crop_size", default=IMAGE)
    sides = dict.fromkeys((side, LARGE_IMAGE))
    if "pixel_values" in taken:
        if isinstance(getattr(config, "image_size", None), list | tuple):
            yield {"pixel_values": torch.rand(BATCH, channels, *config.image_size)}
        for each in sides:
            image = torch.rand(BATCH, channels, each, each)
            yield {"pixel_values": image}
            yield {"pixel_values": image[:, None]}
            yield {"pixel_values": image[:, None].repeat(1, 2, 1, 1, 1)}
            yield {"pixel_values": image[:, None].repeat(1, _frames(config), 1, 1, 1)}
        yield from _patches(config, taken, channels)
        yield {"pixel_values": torch.rand(BATCH, 3, 512, 512)}
    if "pixel_values_videos" in taken:
        video = torch.rand(BATCH, _frames(config), channels, side, side)
        yield {"pixel_values_videos": video}


def _frames(config: Any) -> int:
    return figure(config, "num_frames", "frames_per_clip", default=8)


#: Patches of one image: 4 x 4, or 8 x 8.
GRIDS = (8, 4, 16)


def _patches(config: Any, taken: set[str], channels: int) -> Iterator[Inputs]:
    """Images already cut into rows of patches, as the newer models take them."""
    patch = figure(config, "patch_size", default=14)
    frames = figure(config, "temporal_patch_size", default=1)
    for grid in GRIDS:
        row = channels * patch * patch
        sizes = torch.tensor([[1, grid, grid]] * BATCH)
        for name in ("image_grid_thw", "grid_thw"):
            if name in taken:
                for each in dict.fromkeys((row * frames, row)):
                    rows = torch.rand(BATCH * grid * grid, each)
                    yield {"pixel_values": rows, name: sizes}
        if "spatial_shapes" in taken:
            yield {
                "pixel_values": torch.rand(BATCH, grid * grid, row),
                "spatial_shapes": torch.tensor([[grid, grid]] * BATCH),
                "pixel_attention_mask": torch.ones(BATCH, grid * grid, dtype=torch.long),
            }
        for name in ("pixel_position_ids", "image_position_ids"):
            if name in taken:
                across = torch.arange(grid)
                places = torch.cartesian_prod(across, across)[None].repeat(BATCH, 1, 1)
                yield {"pixel_values": torch.rand(BATCH, grid * grid, row), name: places}
    side = figure(config, "image_size", default=IMAGE)
    if "image_sizes" in taken:
        sizes = torch.tensor([[side, side]] * BATCH)
        yield {"pixel_values": torch.rand(BATCH, 3, 3, side, side), "image_sizes": sizes}
        yield {"pixel_values": torch.rand(BATCH, 5, 3, side, side), "image_sizes": sizes}
        yield {"pixel_values": torch.rand(BATCH, 3, side, side), "image_sizes": sizes}


def _words_with_images(model: Any, image: Inputs) -> Inputs | None:
    """Words with as many places for images as their features fill."""
    features = getattr(model, "get_image_features", None)
    place = _place(model.config, "image_token_id", "image_token_index")
    if features is None or place is None or "pixel_values" not in image:
        return None
    try:
        with torch.no_grad():
            found = features(**image)
    except Exception:  # it asks for other inputs than these: others are tried
        return None
    rows = _num_rows(found)
    if rows is None or rows % BATCH or rows // BATCH > 4096:
        return None
    words = random_text(model.config)
    places = torch.full((BATCH, rows // BATCH), place)
    ids = torch.cat((words[:, :4], places, words[:, 4:]), dim=1)
    call: Inputs = {**image, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        call["mm_token_type_ids"] = (ids == place).long()
    if "token_type_ids" in inspect.signature(model.forward).parameters:
        call["token_type_ids"] = (ids == place).long()
    return call


def _place(config: Any, *names: str) -> int | None:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return None


def _num_rows(found: Any) -> int | None:
    """How many features came back for all images together."""
    pooled = getattr(found, "pooler_output", found)
    if pooled is None:
        pooled = getattr(found, "last_hidden_state", None)
    if isinstance(pooled, list | tuple):
        parts = [each for each in pooled if isinstance(each, torch.Tensor)]
        return sum(each.shape[:-1].numel() for each in parts) or None
    if isinstance(pooled, torch.Tensor) and pooled.dim() > 1:
        return pooled.shape[:-1].numel()
    return None


def _sounds(config: Any, taken: set[str]) -> Iterator[Inputs]:
    mels = figure(
        config,
        "num_mel_bins",
        "feature_size",
        "input_feat_per_channel",
        "num_mels",
        "n_mels",
        "input_dim",
        "input_size",
        default=80,
    )
    if "input_values" in taken:
        yield {"input_values": torch.rand(BATCH, SAMPLES)}
        yield {"input_values": torch.rand(BATCH, 1, 7_680)}
        yield {"input_values": torch.rand(BATCH, 1, 24_000)}
        yield {"input_values": torch.rand(BATCH, figure(config, "max_length", default=1024), mels)}
        yield {"input_values": torch.rand(BATCH, 1, 38_400)}
        yield {"input_values": torch.rand(BATCH, FRAMES, mels)}
    if "input_features" in taken:
        places = figure(config, "max_source_positions", default=1500)
        shapes = ((mels, 2 * places), (FRAMES, mels), (mels, FRAMES), (1, 1001, 64), (FRAMES, 160))
        for shape in shapes:
            sound = torch.rand(BATCH, *shape)
            yield {"input_features": sound}
            length = max(shape[-2:]) if shape[-1] != mels else shape[0]
            for name in ("attention_mask", "input_features_mask", "feature_attention_mask"):
                if name in taken:
                    mask = torch.ones(BATCH, length, dtype=torch.long)
                    yield {"input_features": sound, name: mask}
    if "audio_mel" in taken:
        mask = torch.zeros(BATCH, FRAMES, dtype=torch.bool)
        yield {"audio_mel": torch.rand(BATCH, FRAMES, mels), "audio_mel_mask": mask}


def _series(config: Any, taken: set[str]) -> Iterator[Inputs]:
    length = figure(config, "context_length", "prediction_length", default=64)
    if "past_time_features" not in taken:
        columns = figure(config, "num_input_channels", "input_size", default=1)
        yield {"past_values": torch.rand(BATCH, length, columns)}
        past = [torch.rand(length) for _ in range(BATCH)]
        yield {"past_values": past, "freq": torch.zeros(BATCH, dtype=torch.long)}
        yield {"past_values": torch.rand(BATCH, length)}
        return
    future = config.prediction_length or 24
    if not config.prediction_length:
        config.prediction_length = future
    past = length + max(config.lags_sequence)
    features = config.num_time_features
    yield {
        "past_values": torch.rand(BATCH, past),
        "past_time_features": torch.rand(BATCH, past, features),
        "past_observed_mask": torch.ones(BATCH, past),
        "future_values": torch.rand(BATCH, future),
        "future_time_features": torch.rand(BATCH, future, features),
    }


def _decisions(config: Any) -> Inputs:
    steps = 8
    return {
        "states": torch.rand(BATCH, steps, config.state_dim),
        "actions": torch.rand(BATCH, steps, config.act_dim),
        "rewards": torch.rand(BATCH, steps, 1),
        "returns_to_go": torch.rand(BATCH, steps, 1),
        "timesteps": torch.arange(steps)[None].repeat(BATCH, 1),
        "attention_mask": torch.ones(BATCH, steps, dtype=torch.long),
    }


def _others(config: Any, taken: set[str]) -> Iterator[Inputs]:
    width = figure(config, "hidden_size", "d_model", default=64)
    if "hidden_states" in taken and "grid_thw" in taken:
        channels = figure(config, "num_channels", "in_channels", "in_chans", default=3)
        for patches in _patches(config, {"grid_thw"}, channels):
            yield {"hidden_states": patches["pixel_values"], "grid_thw": patches["grid_thw"]}
    if "inputs" in taken:
        yield {"inputs": random_text(config)}
        yield {"inputs": torch.rand(BATCH, WORDS, figure(config, "d_model", default=64))}
    if "audio_codes" in taken:
        books = figure(config, "num_codebooks", "n_codebooks", "num_quantizers", default=8)
        yield {"audio_codes": torch.randint(0, 90, (BATCH, books, WORDS))}
        yield {"audio_codes": torch.randint(0, 90, (BATCH, WORDS, books))}
    if "input_ids" in taken:
        books = figure(config, "num_codebooks", "n_codebooks", default=4)
        yield {"input_ids": torch.randint(5, 90, (BATCH, WORDS, books))}
        yield {"input_ids": torch.randint(5, 90, (BATCH * books, WORDS))}
    if "inputs_embeds" in taken:
        yield {"inputs_embeds": torch.rand(BATCH, WORDS, width)}
    if "spectrogram" in taken:
        bins = figure(config, "model_in_dim", "input_channels", "num_mel_bins", default=80)
        yield {"spectrogram": torch.rand(BATCH, FRAMES, bins)}
    if "latents" in taken:
        yield {"latents": torch.rand(BATCH, width, WORDS)}
    if "sample" in taken:
        side = figure(config, "image_size", default=64)
        yield {"sample": torch.rand(BATCH, 3, side, side)}
    if "hidden_states" in taken:
        yield {"hidden_states": torch.rand(BATCH, WORDS, width)}
        yield {"hidden_states": torch.rand(BATCH, figure(config, "latent_dim", default=64), WORDS)}


def _with_needed(model: Any, taken: Any, call: Inputs) -> Inputs:
    """A call with what it would be refused without, where the name says what that is."""
    filled = dict(call)
    if "decoder_input_ids" in taken and _decodes(model):
        filled.setdefault("decoder_input_ids", random_text(model.config))
    for name, parameter in taken.items():
        needed = parameter.default is inspect.Parameter.empty and parameter.kind not in (
            inspect.Parameter.VAR_KEYWORD,
            inspect.Parameter.VAR_POSITIONAL,
        )
        if needed and name not in filled:
            value = _needed(name, model.config)
            if value is not None:
                filled[name] = value
    return filled


def _decodes(model: Any) -> bool:
    return bool(getattr(model.config, "is_encoder_decoder", False))


def _needed(name: str, config: Any) -> Any:
    width = figure(config, "hidden_size", "d_model", default=64)
    if name.endswith("input_ids") or name == "task_inputs":
        return random_text(config)
    if name == "freq":
        return torch.zeros(BATCH, dtype=torch.long)
    if name == "past_values_padding":
        return torch.zeros(BATCH, figure(config, "context_length", default=64))
    if name == "bool_masked_pos":
        return torch.ones(BATCH, figure(config, "num_patches", default=196), dtype=torch.bool)
    if name.endswith("mask"):
        return torch.ones(BATCH, WORDS, dtype=torch.long)
    if name == "classes_structure":
        return torch.ones(BATCH, dtype=torch.long)
    if name in ("query_embeds", "encoder_hidden_states", "inputs_embeds", "hidden_states"):
        return torch.rand(BATCH, WORDS, width)
    if name == "merge_sizes":
        return torch.ones(BATCH, dtype=torch.long)
    if name == "prompt_pixel_values":
        side = figure(config, "image_size", default=IMAGE)
        return torch.rand(BATCH, 3, side, side)
    if name == "prompt_masks":
        side = figure(config, "image_size", default=IMAGE)
        return torch.rand(BATCH, 3, side, side)
    return None
