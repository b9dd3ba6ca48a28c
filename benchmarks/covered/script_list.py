"""Which public scripts are run, from which commit, by which command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from covered import script_data as data
from covered.script_data import Maker


@dataclass(frozen=True)
class Source:
    """Where scripts come from: a folder of the programs with its commit or release, or an
    installed package."""

    folder: str
    address: str
    version: str
    package: bool = False


@dataclass(frozen=True)
class Script:
    """A public script and how it is run. `command` is what follows `neusight run --gpu H100` and
    `options`, in the folder `inside`. `limit` is what it says where it meets a documented limit;
    `cannot` why it runs nowhere without a network; `stand_in` what a user has and this did not."""

    name: str
    source: Source
    command: str
    inside: str = ""
    options: str = ""
    data: tuple[Maker, ...] = ()
    needs: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    limit: str = ""
    cannot: str = ""
    stand_in: str = ""


NANOGPT = Source("nanoGPT", "github.com/karpathy/nanoGPT", "3adf61e154c3")
MINGPT = Source("minGPT", "github.com/karpathy/minGPT", "37baab71b9ab")
LLAMA2C = Source("llama2.c", "github.com/karpathy/llama2.c", "350e04fe3543")
EXAMPLES = Source("examples", "github.com/pytorch/examples", "77f55b912142")
GPT_FAST = Source("gpt-fast", "github.com/meta-pytorch/gpt-fast", "6ecad9b5b6b9")
CLEANRL = Source("cleanrl", "github.com/vwxyzjn/cleanrl", "fe8d8a03c41a")

_CHARACTERS = sorted(set("abcdefghijklmnopqrstuvwxyz ,.!:;?'\nGO"))

_NANOGPT_SHAPE = "--n_layer=2 --n_head=4 --n_embd=128 --block_size=64 --batch_size=4"

_NANOGPT = [
    Script(
        "nanoGPT/train",
        NANOGPT,
        f"train.py --compile=False --dataset=tiny --max_iters=12 --eval_iters=2 {_NANOGPT_SHAPE}",
        data=(data.token_ids("data/tiny/train.bin"), data.token_ids("data/tiny/val.bin")),
    ),
    Script(
        "nanoGPT/train, compiled",
        NANOGPT,
        f"train.py --dataset=tiny --max_iters=12 --eval_iters=2 {_NANOGPT_SHAPE}",
        data=(data.token_ids("data/tiny/train.bin"), data.token_ids("data/tiny/val.bin")),
    ),
    Script(
        "nanoGPT/train, 4 ranks",
        NANOGPT,
        "torchrun --standalone --nproc_per_node=4 train.py --compile=False --dataset=tiny "
        f"--max_iters=12 --eval_iters=2 --gradient_accumulation_steps=8 {_NANOGPT_SHAPE}",
        data=(data.token_ids("data/tiny/train.bin"), data.token_ids("data/tiny/val.bin")),
    ),
    Script("nanoGPT/bench", NANOGPT, "bench.py --compile=False --real_data=False --batch_size=2"),
    Script(
        "nanoGPT/sample",
        NANOGPT,
        "sample.py --out_dir=out --num_samples=2 --max_new_tokens=20",
        data=(
            data.pickled(
                "data/tiny/meta.pkl",
                {
                    "vocab_size": len(_CHARACTERS),
                    "stoi": {c: i for i, c in enumerate(_CHARACTERS)},
                    "itos": dict(enumerate(_CHARACTERS)),
                },
            ),
            data.python(
                "import os, torch; from model import GPT, GPTConfig\n"
                f"shape = dict(n_layer=2, n_head=4, n_embd=128, block_size=64, bias=False, "
                f"vocab_size={len(_CHARACTERS)}, dropout=0.0)\n"
                "os.makedirs('out')\n"
                "torch.save({'model': GPT(GPTConfig(**shape)).state_dict(), 'model_args': shape, "
                "'config': {'dataset': 'tiny'}}, 'out/ckpt.pt')"
            ),
        ),
        needs=("tiktoken",),
    ),
]

_MINGPT = [
    Script(
        "minGPT/adder",
        MINGPT,
        "projects/adder/adder.py --trainer.max_iters=12 --trainer.num_workers=0",
        environment={"PYTHONPATH": "."},
    ),
    Script(
        "minGPT/chargpt",
        MINGPT,
        "projects/chargpt/chargpt.py --trainer.max_iters=12 --trainer.num_workers=2",
        data=(data.text("input.txt"),),
        environment={"PYTHONPATH": "."},
    ),
]

_LLAMA2C = [
    Script(
        "llama2.c/train",
        LLAMA2C,
        "train.py --compile=False --eval_iters=2 --batch_size=4 --max_iters=8 --dim=64 "
        "--n_layers=2",
        data=tuple(
            data.token_ids(f"data/TinyStories_all_data/data{i:02}.bin", num_distinct=32_000)
            for i in range(2)
        ),
        needs=("sentencepiece", "requests"),
        stand_in="its export.py, which writes files for C, is imported and not run",
    ),
]

_GPT_FAST_MODEL = data.python(
    "import os, torch; from model import Transformer\n"
    "os.makedirs('checkpoints/stories15M')\n"
    "torch.save(Transformer.from_name('stories15M').state_dict(), "
    "'checkpoints/stories15M/model.pth')\n"
    "import sentencepiece\n"
    "sentencepiece.SentencePieceTrainer.train(input='words.txt', vocab_size=60, "
    "model_prefix='checkpoints/stories15M/tokenizer', hard_vocab_limit=False)"
)

_GPT_FAST = [
    Script(
        "gpt-fast/generate",
        GPT_FAST,
        "generate.py --checkpoint_path checkpoints/stories15M/model.pth --num_samples 3 "
        "--max_new_tokens 16 --prompt 'the king'",
        data=(data.text("words.txt"), _GPT_FAST_MODEL),
        needs=("sentencepiece", "tiktoken"),
    ),
    Script(
        "gpt-fast/generate, compiled",
        GPT_FAST,
        "generate.py --checkpoint_path checkpoints/stories15M/model.pth --num_samples 3 "
        "--max_new_tokens 16 --prompt 'the king' --compile",
        data=(data.text("words.txt"), _GPT_FAST_MODEL),
        needs=("sentencepiece", "tiktoken"),
    ),
]

_CLEANRL = [
    Script(
        "cleanrl/ppo",
        CLEANRL,
        "cleanrl/ppo.py --total-timesteps 1024 --num-steps 32",
        needs=("gymnasium", "tyro", "tensorboard"),
    ),
]


def _example(
    folder: str,
    command: str,
    *made: Maker,
    name: str = "",
    needs: tuple[str, ...] = (),
    options: str = "",
    cannot: str = "",
    limit: str = "",
    environment: Mapping[str, str] | None = None,
) -> Script:
    return Script(
        f"examples/{name or folder}",
        EXAMPLES,
        command,
        inside=folder,
        data=made,
        needs=needs,
        options=options,
        cannot=cannot,
        limit=limit,
        environment=environment or {},
    )


_VISION = ("torchvision",)

_EXAMPLES = [
    _example("mnist", "main.py --epochs 1", data.digits("../data"), needs=_VISION),
    _example("mnist_rnn", "main.py --epochs 1 --accel", data.digits("../data"), needs=_VISION),
    _example(
        "vae",
        "main.py --epochs 1",
        data.digits("../data", num_train=512, num_test=256),
        data.file("results/.gitignore", "*"),
        needs=_VISION,
    ),
    _example("siamese_network", "main.py --epochs 1", data.digits("../data"), needs=_VISION),
    _example(
        "mnist_forward_forward",
        "main.py --epochs 6 --train_size 128 --test_size 32",
        data.digits("data"),
        needs=_VISION,
    ),
    _example(
        "dcgan",
        "main.py --dataset fake --accel --niter 1 --batchSize 4 --workers 0 --dry-run",
        needs=_VISION,
    ),
    _example(
        "fast_neural_style",
        "neural_style/neural_style.py train --accel --epochs 1 --batch-size 2 --dataset images "
        "--style-image images/class/000.jpg --save-model-dir saved",
        data.file("saved/.gitignore", "*"),
        data.images("images", classes=("class",)),
        data.python(
            "import os, torch, torchvision\n"
            "os.makedirs('hub/checkpoints')\n"
            "torch.save(torchvision.models.vgg16().state_dict(), "
            "'hub/checkpoints/vgg16-397923af.pth')"
        ),
        needs=_VISION,
        environment={"TORCH_HOME": "."},
    ),
    _example("imagenet", "main.py --dummy -a resnet18 -b 8 -j 0 -p 1 --epochs 1", needs=_VISION),
    _example(
        "imagenet",
        "main.py images -a mobilenet_v2 -b 4 -j 2 -p 1 --epochs 1",
        data.images("images/train", classes=("a", "b")),
        data.images("images/val", classes=("a", "b")),
        name="imagenet, folders",
        needs=_VISION,
    ),
    _example(
        "imagenet",
        "main.py --dummy -a resnet18 -b 8 -j 0 -p 1 --epochs 1 --multiprocessing-distributed "
        "--dist-url tcp://127.0.0.1:29511 --world-size 1 --rank 0",
        name="imagenet, spawned",
        needs=_VISION,
        options="--world-size 4",
    ),
    _example(
        "gat", "main.py --epochs 8 --val-every 4", data.citations("cora"), needs=("requests",)
    ),
    _example(
        "gcn",
        "main.py --epochs 8",
        cannot="it downloads Cora at every start",
    ),
    _example(
        "super_resolution",
        "main.py --upscale_factor 3 --accel --batchSize 2 --testBatchSize 2 --nEpochs 1 "
        "--threads 0",
        data.images("dataset/BSDS300/images/train"),
        data.images("dataset/BSDS300/images/test", num=4),
        needs=(*_VISION, "six"),
    ),
    _example(
        "word_language_model",
        "main.py --accel --model LSTM --epochs 1 --emsize 32 --nhid 32 --batch_size 4",
        data.text("data/wikitext-2/train.txt"),
        data.text("data/wikitext-2/valid.txt", num_lines=60),
        data.text("data/wikitext-2/test.txt", num_lines=60),
        name="word_language_model, LSTM",
    ),
    _example(
        "word_language_model",
        "main.py --accel --model Transformer --epochs 1 --emsize 32 --nhid 32 --batch_size 4",
        data.text("data/wikitext-2/train.txt"),
        data.text("data/wikitext-2/valid.txt", num_lines=60),
        data.text("data/wikitext-2/test.txt", num_lines=60),
        name="word_language_model, Transformer",
    ),
    _example(
        "language_translation",
        "main.py --backend gpu --epochs 1",
        needs=("torchtext",),
    ),
]

_DISTRIBUTED = [
    _example("distributed/ddp", "example.py", options="--world-size 4 --rank all-distinct"),
    _example(
        "distributed/ddp-tutorial-series",
        "single_gpu.py 1 1",
        name="distributed/ddp-tutorial-series/single_gpu",
    ),
    _example(
        "distributed/ddp-tutorial-series",
        "multigpu.py 1 1",
        name="distributed/ddp-tutorial-series/multigpu",
        options="--world-size 4",
    ),
    _example(
        "distributed/ddp-tutorial-series",
        "torchrun --standalone --nproc_per_node=4 multigpu_torchrun.py 1 1",
        name="distributed/ddp-tutorial-series/multigpu_torchrun",
    ),
    _example(
        "distributed/ddp-tutorial-series",
        "torchrun --nproc_per_node=4 --nnodes=2 --node_rank=0 --rdzv_id=1 --rdzv_backend=c10d "
        "--rdzv_endpoint=localhost:29512 multinode.py 1 1",
        name="distributed/ddp-tutorial-series/multinode",
    ),
    _example("distributed/FSDP2", "example.py", options="--world-size 4 --rank all-distinct"),
    _example(
        "distributed/FSDP2",
        "example.py --mixed-precision --explicit-prefetching",
        name="distributed/FSDP2, mixed precision",
        options="--world-size 2 --rank all-distinct",
    ),
    *(
        _example(
            "distributed/tensor_parallelism",
            f"{script}.py",
            name=f"distributed/tensor_parallelism/{script}",
            options="--world-size 4 --rank all-distinct",
        )
        for script in (
            "tensor_parallel_example",
            "sequence_parallel_example",
            "fsdp_tp_example",
        )
    ),
    _example(
        "distributed/minGPT-ddp/mingpt",
        "main.py data_config.path=input.txt trainer_config.max_epochs=1 "
        "trainer_config.batch_size=8 gpt_config.n_layer=2 gpt_config.n_embd=64 "
        "data_config.truncate=1",
        data.text("input.txt"),
        name="distributed/minGPT-ddp",
        options="--world-size 2 --rank all-distinct",
        needs=("hydra", "fsspec", "boto3"),
    ),
    *(
        _example(
            f"distributed/rpc/{folder}",
            command,
            options="--world-size 2",
            limit="torch.distributed.rpc.init_rpc",
        )
        for folder, command in (
            ("rnn", "main.py"),
            ("pipeline", "main.py"),
            ("batch", "reinforce.py"),
            ("ddp_rpc", "main.py"),
        )
    ),
]

SCRIPTS: tuple[Script, ...] = (
    *_NANOGPT,
    *_MINGPT,
    *_LLAMA2C,
    *_GPT_FAST,
    *_CLEANRL,
    *_EXAMPLES,
    *_DISTRIBUTED,
)
