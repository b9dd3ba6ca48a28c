"""Operators of steps that torch's profiler records on the CPU beside those of their forecasts.

    python benchmarks/operators_on_cpu.py [--programs DIR] [--update] [NAME ...]

Each program trains a small model. One steady step of it is profiled on the CPU of this
machine, and forecast on an H100 by the same code; the operators are paired by name, and by name
with that of the operator around them. Differences of devices are left out: what an op calls inside,
dropout (a kernel on a GPU), and how the kernels of attention and batch norm are called. Where a
gradient is added in place is not known of tensors without data: `add_` may be `add`. --programs
has public scripts (../shared/programs beside the checkout); what is not there, or needs a package
that is not installed, is left out. Results with --update:
results/operators_on_cpu.csv, a row a program; programs that were not run keep their rows.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from tables import read_table, write_table
from torch import Tensor, nn
from torch.nn import functional

import neusight
from neusight.integrations.profiles.reading.profile import HostOp
from neusight.integrations.profiles.reading.reading import read_profile_events
from neusight.output.trace.file import trace_events

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "operators_on_cpu.csv"
EXAMPLES = HERE.parent / "examples"
PROGRAMS = HERE.parents[1] / "shared" / "programs"
#: Steps before the one that is paired, so that optimizers have their states.
WARM_STEPS = 2
#: Operators without a partner that a row names, the most frequent first.
MOST_NAMED = 4

Step = Callable[[], object]
Make = Callable[[torch.device], Step]
#: The name of an operator around another ("" at the top), and its own.
Pair = tuple[str, str]


class Pairs(NamedTuple):
    """How many operators each side has, how many have a partner by name and by name and parent,
    and the names of the others with how often they are alone."""

    on_cpu: int
    forecast: int
    by_name: int
    with_parent: int
    alone_on_cpu: str
    alone_in_forecast: str


# -- programs


def without_dropout(model: nn.Module) -> nn.Module:
    """The model, in which nothing is dropped out."""
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    return model


def training(
    model: nn.Module, inputs: Sequence[Tensor], loss: Callable[[Any], Tensor], device: torch.device
) -> Step:
    """A step of training with AdamW."""
    model = without_dropout(model).to(device)
    inputs = [tensor.to(device) for tensor in inputs]
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step() -> None:
        loss(model(*inputs)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def of_sum(result: Any) -> Tensor:
    """A loss of any first result."""
    if isinstance(result, tuple):
        result = result[-1] if result[-1] is not None and result[-1].ndim == 0 else result[0]
    total: Tensor = getattr(result, "loss", result).float().mean()
    return total


def by_sum(model: Callable[[], nn.Module], *inputs: Tensor) -> Make:
    """A model trained on the sum of what it gives."""
    return lambda device: training(model(), inputs, of_sum, device)


def tokens(*shape: int, limit: int = 100) -> Tensor:
    return torch.randint(0, limit, shape)


def gan(generator: nn.Module, discriminator: nn.Module, device: torch.device) -> Step:
    """Both networks of a DCGAN in turn."""
    generator, discriminator = generator.to(device), discriminator.to(device)
    optimizers = [
        torch.optim.Adam(net.parameters(), 2e-4, foreach=True) for net in (discriminator, generator)
    ]
    real, labels = torch.randn(4, 3, 64, 64, device=device), torch.ones(4, device=device)
    criterion = nn.BCEWithLogitsLoss()

    def step() -> None:
        fake = generator(torch.randn(4, 100, 1, 1, device=device))
        loss = criterion(discriminator(real), labels)
        loss = loss + criterion(discriminator(fake.detach()), torch.zeros_like(labels))
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        criterion(discriminator(fake), labels).backward()
        optimizers[1].step()

    return step


def loaded(path: Path) -> ModuleType:
    """What a script imports, as far as it is installed, and defines; it is not run."""
    kinds = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
    module = sys.modules[f"program_{path.stem}"] = ModuleType(f"program_{path.stem}")
    sys.path.insert(0, str(path.parent))
    try:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, kinds) and not is_constant(node):
                continue
            with suppress(ModuleNotFoundError):
                exec(compile(ast.Module([node], []), str(path), "exec"), vars(module))
    finally:
        sys.path.remove(str(path.parent))
    return module


def is_constant(node: ast.stmt) -> bool:
    """Whether a statement gives a constant its value."""
    if not isinstance(node, ast.Assign):
        return False
    return all(isinstance(name, ast.Name) and name.id.isupper() for name in node.targets)


def example(name: str) -> ModuleType:
    return loaded(EXAMPLES / name)


def example_gpt2(device: torch.device) -> Step:
    module = example("train_gpt2.py")
    sizes = {"vocabulary": 100, "context": 32, "width": 32, "num_layers": 2, "num_heads": 2}
    model = module.GPT2(module.Config(**sizes))
    targets = tokens(2 * 16).to(device)
    return training(
        model, [tokens(2, 16)],
        lambda logits: functional.cross_entropy(logits.flatten(0, 1), targets), device,
    )  # fmt: skip


def example_resnet50(device: torch.device) -> Step:
    model = example("train_resnet50.py").ResNet50()
    targets = tokens(2).to(device)
    return training(
        model,
        [torch.randn(2, 3, 32, 32)],
        lambda out: functional.cross_entropy(out, targets),
        device,
    )


def example_dcgan(device: torch.device) -> Step:
    module = example("train_dcgan.py")
    return gan(module.generator(), module.discriminator(), device)


def example_lstm(device: torch.device) -> Step:
    model = example("train_lstm.py").Translator(100, 16, 2, 0.1)
    return training(model, [tokens(2, 6), tokens(2, 6)], of_sum, device)


def classifier(device: torch.device) -> Step:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
    targets = tokens(8, limit=10).to(device)
    return training(
        model, [torch.randn(8, 16)], lambda out: functional.cross_entropy(out, targets), device
    )


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.SiLU(), nn.ConvTranspose2d(8, 3, 2, 2)
    )


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def compiled(backend: str) -> Make:
    def make(device: torch.device) -> Step:
        torch.compiler.reset()
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(device)
        inputs = [torch.randn(8, 16)]
        whole: Any = torch.compile(model, backend=backend)
        return training(whole, inputs, of_sum, device)

    return make


def hugging_face(config: str, model: str, *, of_text: bool = True, **sizes: Any) -> Make:
    """A small model of transformers, trained on its own labels."""

    def make(device: torch.device) -> Step:
        transformers: Any = importlib.import_module("transformers")
        made = without_dropout(getattr(transformers, model)(getattr(transformers, config)(**sizes)))
        made = made.to(device)
        ids = tokens(2, 8).to(device)
        given = (
            {"input_ids": ids}
            if of_text
            else {"pixel_values": torch.randn(2, 3, 32, 32).to(device)}
        )
        labels = ids if of_text else tokens(2, limit=2).to(device)
        optimizer = torch.optim.AdamW(made.parameters(), foreach=True)

        def step() -> None:
            made(**given, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


_TEXT: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64,
}  # fmt: skip

OWN: dict[str, Make] = {
    "example gpt2": example_gpt2,
    "example resnet50": example_resnet50,
    "example dcgan": example_dcgan,
    "example lstm": example_lstm,
    "classifier": classifier,
    "autoencoder": by_sum(autoencoder, torch.randn(2, 3, 16, 16)),
    "transformer encoder": by_sum(encoder, torch.randn(2, 8, 32)),
    "rnn": by_sum(lambda: nn.RNN(16, 16, 1), torch.randn(5, 2, 16)),
    "compiled, aot_eager": compiled("aot_eager"),
    "compiled, eager": compiled("eager"),
    "hf gpt2": hugging_face(
        "GPT2Config", "GPT2LMHeadModel", vocab_size=100, n_embd=32, n_layer=2, n_head=2
    ),
    "hf bert": hugging_face("BertConfig", "BertForMaskedLM", **_TEXT),
    "hf llama": hugging_face("LlamaConfig", "LlamaForCausalLM", **_TEXT),
    "hf distilbert": hugging_face(
        "DistilBertConfig", "DistilBertForMaskedLM", vocab_size=100, dim=32, hidden_dim=64,
        n_layers=2, n_heads=2,
    ),
    "hf opt": hugging_face(
        "OPTConfig", "OPTForCausalLM", vocab_size=100, hidden_size=32, ffn_dim=64,
        num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=32,
    ),
    "hf t5": hugging_face(
        "T5Config", "T5ForConditionalGeneration", vocab_size=100, d_model=32, d_kv=16, d_ff=64,
        num_layers=2, num_heads=2, decoder_start_token_id=0,
    ),
    "hf vit": hugging_face(
        "ViTConfig", "ViTForImageClassification", of_text=False, image_size=32, patch_size=8,
        **{name: size for name, size in _TEXT.items() if name != "vocab_size"},
    ),
}  # fmt: skip


def public(folder: Path) -> dict[str, Make]:
    """Models of public scripts, built small."""

    def script(*parts: str) -> ModuleType:
        return loaded(folder.joinpath(*parts))

    def nano() -> nn.Module:
        module = script("nanoGPT", "model.py")
        return module.GPT(module.GPTConfig(32, 100, 2, 2, 32))

    def mini() -> nn.Module:
        sys.path.insert(0, str(folder / "minGPT"))
        module: Any = importlib.import_module("mingpt.model")
        config = module.GPT.get_default_config()
        config.n_layer = config.n_head = 2
        config.n_embd, config.vocab_size, config.block_size = 32, 100, 16
        config.model_type = None
        return module.GPT(config)

    def llama2() -> nn.Module:
        module = script("llama2.c", "model.py")
        sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "vocab_size": 100, "max_seq_len": 16}
        return module.Transformer(module.ModelArgs(**sizes))

    def vae(device: torch.device) -> Step:
        module = script("examples", "vae", "main.py")
        images = torch.rand(4, 1, 28, 28)
        given = images.to(device)
        return training(
            module.VAE(), [images],
            lambda found: module.loss_function(found[0], given, *found[1:]), device,
        )  # fmt: skip

    def mnist(device: torch.device) -> Step:
        module = script("examples", "mnist", "main.py")
        targets = tokens(4, limit=10).to(device)
        return training(
            module.Net(), [torch.randn(4, 1, 28, 28)],
            lambda out: functional.nll_loss(out, targets), device,
        )  # fmt: skip

    def vit(name: str, model: str) -> Make:
        def make() -> nn.Module:
            sys.path.insert(0, str(folder / "vit-pytorch"))
            module: Any = importlib.import_module(f"vit_pytorch.{name}")
            return getattr(module, model)(
                image_size=32, patch_size=8, num_classes=10, dim=32, depth=2, heads=2, mlp_dim=64
            )

        return by_sum(make, torch.randn(2, 3, 32, 32))

    square = [torch.randn(10, 8), torch.eye(10)]
    pair = [tokens(2, 16), tokens(2, 16)]
    image = torch.randn(1, 3, 32, 32)
    style = ("examples", "fast_neural_style", "neural_style", "transformer_net.py")
    words = ("examples", "word_language_model", "model.py")
    return {
        "nanoGPT": by_sum(nano, *pair),
        "minGPT": by_sum(mini, *pair),
        "llama2.c": by_sum(llama2, *pair),
        "examples vae": vae,
        "examples super_resolution": by_sum(
            lambda: script("examples", "super_resolution", "model.py").Net(3),
            torch.randn(1, 1, 12, 12),
        ),
        "examples fast_neural_style": by_sum(lambda: script(*style).TransformerNet(), image),
        "examples word_language_model": by_sum(
            lambda: script(*words).TransformerModel(100, 32, 2, 32, 2), tokens(8, 2)
        ),
        "examples mnist": mnist,
        "examples gcn": by_sum(lambda: script("examples", "gcn", "main.py").GCN(8, 16, 4), *square),
        "examples gat": by_sum(
            lambda: script("examples", "gat", "main.py").GAT(8, 16, 2, 4), *square
        ),
        "vit-pytorch vit": vit("vit", "ViT"),
        "vit-pytorch simple_vit": vit("simple_vit", "SimpleViT"),
        "vit-pytorch deepvit": vit("deepvit", "DeepViT"),
    }


# -- pairing


def pairs_of(make: Make) -> Pairs:
    """A step on the CPU beside its forecast."""
    on_gpu, ops = forecast_pairs(make)
    on_cpu = profiled_pairs(make, ops)
    names, our_names = (Counter(name for _, name in found.elements()) for found in (on_cpu, on_gpu))
    return Pairs(
        on_cpu.total(),
        on_gpu.total(),
        (names & our_names).total(),
        (on_cpu & on_gpu).total(),
        named(names - our_names),
        named(our_names - names),
    )


def named(alone: Counter[str]) -> str:
    """The most frequent of some names."""
    found = sorted(alone.items(), key=lambda item: (-item[1], item[0]))[:MOST_NAMED]
    return ", ".join(f"{name} x{count}" for name, count in found)


def forecast_pairs(make: Make) -> tuple[Counter[Pair], set[str]]:
    """Of the last step of a forecast, down to the ops, and the names of these."""
    torch.manual_seed(0)
    with neusight.forecast_on("H100") as forecast:
        step = make(torch.device("cuda"))
        for _ in range(WARM_STEPS + 1):
            step()
            forecast.step()
    timeline = forecast.timeline
    last = timeline.steps[-1]
    ops = {
        common(span.name)
        for span in timeline.host[last.first_host : last.last_host]
        if span.kind == "op"
    }
    trace = trace_events(timeline, forecast.memory, forecast.gpu, max_steps=1)
    profile = read_profile_events(trace, source="the forecast")
    return pairs_in(profile.ops, ops), ops


def profiled_pairs(make: Make, ops: set[str]) -> Counter[Pair]:
    """Of one step on the CPU, down to the ops that the forecast has."""
    torch.manual_seed(0)
    step = make(torch.device("cpu"))
    for _ in range(WARM_STEPS):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    found: Counter[Pair] = Counter()
    for event in profiler.events():
        above = list(ancestors(event))
        if is_operator(event.name) and not ops.intersection(map(common, above)):
            around = above[0] if above and is_operator(above[0]) else ""
            found[common(around), common(event.name)] += 1
    return found


def ancestors(event: Any) -> Iterator[str]:
    while event.cpu_parent is not None:
        event = event.cpu_parent
        yield event.name


def pairs_in(operators: Sequence[HostOp], ops: set[str]) -> Counter[Pair]:
    """Of operators in order of start, outer ones first."""
    found: Counter[Pair] = Counter()
    open_: dict[str, list[HostOp]] = {}
    for op in operators:
        stack = open_.setdefault(op.thread, [])
        while stack and stack[-1].end_ns <= op.start_ns:
            stack.pop()
        above = [common(around.name) for around in stack]
        if is_operator(op.name) and not ops.intersection(above):
            found[above[-1] if above and is_operator(above[-1]) else "", common(op.name)] += 1
        stack.append(op)
    return found


#: Begins the names of ranges that are no operators.
_RANGES = (
    "Optimizer.", "ProfilerStep#", "TorchDynamo", "Torch-Compiled", "AOTDispatcher", 
    "PythonDispatch", "Pregraph", "CompiledFunction", "profiler::", "[memory]",
)  # fmt: skip


def is_operator(name: str) -> bool:
    return not name.startswith(_RANGES)


#: Kernels of devices for one thing, and autograd's nodes of them: the name, and what it stands for.
_KERNELS = (
    (re.compile(r"(_scaled_dot_product_)(flash_|efficient_|cudnn_)attention(_for_cpu)?"),
     r"\1attention"),
    (re.compile(r"(ScaledDotProduct)(Flash|Efficient|Cudnn)Attention(ForCpu)?"), r"\1Attention"),
    (re.compile(r"(cudnn|native)_batch_norm"), "batch_norm_kernel"),
    (re.compile(r"(Cudnn|Native)BatchNorm"), "BatchNorm"),
)  # fmt: skip


def common(name: str) -> str:
    """The name of an operator, the same one on all devices."""
    for pattern, replacement in _KERNELS:
        name = pattern.sub(replacement, name)
    return name


# -- results


def update(found: Mapping[str, Pairs]) -> None:
    stored = {row["program"]: list(row.values()) for row in read_table(RESULTS)}
    rows = stored | {name: [name, *map(str, pairs)] for name, pairs in found.items()}
    write_table(RESULTS, ["program", *Pairs._fields], rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--programs", type=Path, default=PROGRAMS)
    parser.add_argument("--update", action="store_true", help="write the table of results")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    found: dict[str, Pairs] = {}
    programs = OWN | (public(arguments.programs) if arguments.programs.is_dir() else {})
    for name, make in programs.items():
        if arguments.names and name not in arguments.names:
            continue
        try:
            pairs = found[name] = pairs_of(make)
        except ModuleNotFoundError as error:
            print(f"{name}: left out, {error}")
            continue
        print(f"{name}: {pairs}", flush=True)
    total = sum(pairs.on_cpu for pairs in found.values())
    if total:
        by_name = sum(pairs.by_name for pairs in found.values()) / total
        with_parent = sum(pairs.with_parent for pairs in found.values()) / total
        print(f"All: {total:,} operators, {by_name:.1%} by name, {with_parent:.1%} with parent")
    if arguments.update:
        update(found)


if __name__ == "__main__":
    main()
