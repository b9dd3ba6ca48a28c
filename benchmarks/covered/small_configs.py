"""Configurations of transformers made small: few layers, few experts, few words, narrow rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

#: Names that configurations have for the number of their layers.
LAYERS = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
    "num_encoder_layers",
    "num_decoder_layers",
    "num_transformer_layers",
    "num_block_repeats",
    "depth",
    "e_layers",
    "d_layers",
    "num_decoder_hidden_layers",
    "num_encoder_hidden_layers",
    "text_config_num_layers",
    "mtp_num_hidden_layers",
    "num_nextn_predict_layers",
    "qformer_num_hidden_layers",
    "resampler_depth",
    "predictor_num_hidden_layers",
    "decoder_num_hidden_layers",
    "encoder_num_hidden_layers",
    "vision_layers",
    "num_layers_per_block",
    "memory_attention_num_layers",
)
#: Lists with one entry for each layer.
LISTS = (
    "layer_types",
    "layers_block_type",
    "mlp_layer_types",
    "attention_layers",
    "indexer_types",
    "hybrid_layer_ids",
    "mlp_only_layers",
    "layers_type",
    "block_types",
)
EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "n_experts",
    "num_routed_experts",
)
#: Widths that no other figure is derived from.
INNER = (
    "intermediate_size",
    "moe_intermediate_size",
    "ffn_dim",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "shared_expert_intermediate_size",
    "d_ff",
    "n_inner",
    "feed_forward_hidden_size",
    "dim_feedforward",
    "q_lora_rank",
    "mlp_dim",
)
#: What a scan works on at a time; the CPU fills it up where there are fewer words.
CHUNKS = ("chunk_size", "mamba_chunk_size", "ssm_chunk_size")
WORDS = ("vocab_size", "text_vocab_size", "audio_vocab_size", "decoder_vocab_size")
HEADS = (
    ("hidden_size", "num_attention_heads"),
    ("d_model", "num_heads"),
    ("n_embd", "n_head"),
    ("d_model", "encoder_attention_heads"),
    ("d_model", "num_attention_heads"),
    ("hidden_size", "num_heads"),
    ("embed_dim", "num_heads"),
    ("hidden_size", "n_heads"),
    ("dim", "n_heads"),
    ("emb_dim", "n_heads"),
)
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
#: Groups of heads of a scan.
GROUPS = ("n_groups", "mamba_n_groups")

NUM_LAYERS = 2
MAX_LISTED = 8
#: Lists that are longer have an entry for each layer; shorter ones may have one for each stage.
MOST_STAGES = 6
NUM_EXPERTS = 8
NUM_WORDS = 512
INNER_WIDTH = 256
NUM_HEADS = 4
CHUNK = 16
#: Pixels of a side.
IMAGE = 64


def small_configs(build: Callable[[], Any]) -> Iterator[Any]:
    """The configuration that `build` gives, made small in three ways, the smallest first: what
    cannot be built as one may be as the next."""
    for change in (_narrow, _few_text, _few):
        config = build()
        change(config)
        yield config


#: How often layers are left out of a training step: chance would decide which gradients there are.
_LEFT_OUT = (
    "layerdrop",
    "encoder_layerdrop",
    "decoder_layerdrop",
    "speech_encoder_layerdrop",
)

#: What some configurations leave to the user to say, and a value for each.
_UNSAID = {
    "prediction_length": 16,
    "context_length": 16,
    "vocab_size": NUM_WORDS,
    "num_key_value_heads": NUM_HEADS,
    "default_language": "en_XX",
    "rope_theta": 10_000.0,
}


def _few(config: Any) -> None:
    _keep_backbone_here(config)
    for part in parts_of(config):
        _cut_layers(part)
        _say(part)
        for name in _LEFT_OUT:
            if hasattr(part, name):
                _set(part, name, 0.0)


def _say(config: Any) -> None:
    """Fills what has no default."""
    for name, value in _UNSAID.items():
        if getattr(config, name, value) is None:
            _set(config, name, value)
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, dict) and rope.get("rope_theta", 0) is None:
        rope["rope_theta"] = _UNSAID["rope_theta"]
    if hasattr(config, "attn_layer_indices") and not config.attn_layer_indices:
        _set(config, "attn_layer_indices", [1])  # mamba and attention, one of each
    if set(getattr(config, "layer_types", None) or ()) == {"mamba"}:
        _set(config, "layer_types", ["mamba", "attention"])


def _keep_backbone_here(config: Any) -> None:
    """A ResNet of transformers where timm, which needs torchvision, would be asked for one."""
    from transformers import ResNetConfig

    for part in parts_of(config):
        backbone = getattr(part, "backbone_config", None)
        if getattr(backbone, "model_type", "") == "timm_backbone":
            stages = getattr(backbone, "out_indices", None) or (4,)
            names = ["stem", "stage1", "stage2", "stage3", "stage4"]
            chosen = [names[index] for index in stages if -5 <= index < 5]
            _set(part, "backbone_config", ResNetConfig(out_features=chosen))


def _few_text(config: Any) -> None:
    _few(config)
    renamed: dict[int, int] = {}
    for part in parts_of(config):
        _cut_text(part, renamed)
        _lower(part, "image_size", IMAGE)
        for name in EXPERTS:
            _lower(part, name, NUM_EXPERTS)
        for name in INNER:
            _lower(part, name, INNER_WIDTH)
        for name in CHUNKS:
            _lower(part, name, CHUNK)
        _keep_choices_below_experts(part)


def _narrow(config: Any) -> None:
    _few_text(config)
    widths: dict[int, int] = {}
    for part in parts_of(config):
        widths.update(_cut_heads(part))
    for part in parts_of(config):
        for name, value in list(vars(part).items()):
            if name in _DERIVED_WIDTHS and value in widths:
                _set(part, name, widths[value])


_DERIVED_WIDTHS = (
    "out_hidden_size",
    "text_hidden_size",
    "vision_hidden_size",
    "encoder_hidden_size",
    "output_dim",
    "output_hidden_size",
    "projector_hidden_size",
    "audio_hidden_size",
    "cross_attention_hidden_size",
    "mm_hidden_size",
    "lru_width",
    "embedding_size",
    "word_embed_proj_dim",
    "decoder_hidden_size",
    "linear_num_value_heads",
)


def parts_of(config: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """A configuration and all that lie in it."""
    from transformers import PretrainedConfig

    seen = set() if seen is None else seen
    if id(config) in seen:
        return
    seen.add(id(config))
    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PretrainedConfig):
            yield from parts_of(value, seen)


def _set(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        return  # computed of other figures


def _integer(config: Any, name: str) -> int | None:
    value = getattr(config, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _lower(config: Any, name: str, most: int) -> None:
    value = _integer(config, name)
    if value is not None and value > most:
        _set(config, name, most)


def _cut_layers(config: Any) -> None:
    """Two layers, or as many as hold one of each kind."""
    number = NUM_LAYERS
    for name in LISTS:
        kinds = getattr(config, name, None)
        if isinstance(kinds, list) and len(kinds) > NUM_LAYERS and isinstance(kinds[0], str):
            number = max(number, min(_length_with_all(kinds), MAX_LISTED))
    for name in LISTS:
        kinds = getattr(config, name, None)
        if isinstance(kinds, list) and len(kinds) > number:
            cut = [kind for kind in kinds if not isinstance(kind, int) or kind < number]
            _set(config, name, cut[:number])
    _cut_listed(config, number)
    stages = {len(v) for v in vars(config).values() if isinstance(v, list | tuple) and len(v) > 2}
    for name in LAYERS:
        if _integer(config, name) not in stages:  # a list has an entry for each
            _lower(config, name, number)
    depths = getattr(config, "depths", None)
    if isinstance(depths, list | tuple) and depths and isinstance(depths[0], int):
        _set(config, "depths", type(depths)(min(depth, 2) for depth in depths))


def _cut_listed(config: Any, number: int) -> None:
    """Lists of any name that have an entry for each of many layers."""
    layers = {_integer(config, name) or 0 for name in LAYERS}
    for name, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) in layers and len(value) > MOST_STAGES:
            _set(config, name, value[:number])


def _length_with_all(kinds: list[Any]) -> int:
    return max(kinds.index(kind) for kind in set(kinds)) + 1


def _cut_text(config: Any, renamed: dict[int, int]) -> None:
    """Fewer words; the special ones move to the end, each to the same place everywhere."""
    old = max((_integer(config, name) or 0) for name in WORDS)
    if old <= NUM_WORDS:
        return
    for name in WORDS:
        _lower(config, name, NUM_WORDS)
    for name, value in list(vars(config).items()):
        if not name.endswith(("_token_id", "_token_index", "_id", "_token_ids", "_index")):
            continue
        if isinstance(value, int) and not isinstance(value, bool) and value >= NUM_WORDS:
            _set(config, name, _renamed(value, renamed))
        elif isinstance(value, list) and all(isinstance(each, int) for each in value):
            _set(config, name, [_renamed(v, renamed) if v >= NUM_WORDS else v for v in value])


def _renamed(value: int, renamed: dict[int, int]) -> int:
    return renamed.setdefault(value, NUM_WORDS - 1 - len(renamed))


def _keep_choices_below_experts(config: Any) -> None:
    experts = next((n for n in (_integer(config, name) for name in EXPERTS) if n), None)
    if experts is None:
        return
    for name in ("num_experts_per_tok", "moe_topk", "moe_k", "top_k", "num_experts_per_token"):
        _lower(config, name, max(1, experts // 2))
        if hasattr(config, name) and getattr(config, name) is None:
            _set(config, name, 2)
    for name in ("n_group", "topk_group", "num_expert_group"):
        _lower(config, name, 1)


def _cut_heads(config: Any) -> dict[int, int]:
    """Four heads of the same size each; which widths that changed, to what."""
    for wide, heads in HEADS:
        width, number = _integer(config, wide), _integer(config, heads)
        if width is None or number is None or number <= NUM_HEADS or width % number:
            continue
        narrow = width // number * NUM_HEADS
        for name in (heads, "decoder_attention_heads", "encoder_attention_heads"):
            _lower(config, name, NUM_HEADS)
        for name in KEY_HEADS:
            keys = _integer(config, name)
            if keys is not None and keys > 1:
                _set(config, name, NUM_HEADS if keys >= number else 2)
        for name in GROUPS:
            _lower(config, name, NUM_HEADS)
        _set(config, wide, narrow)
        return {width: narrow}
    return {}
