"""Which public scripts are run, from which commit, by which command."""

from __future__ import annotations

import os
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
    `options`, in the folder `inside`; `{bin}` is where packages put their commands. `limit` is
    what it says where it meets a documented limit; `cannot` why it runs nowhere here, on a CPU
    either; `stub` what a user has and this did not."""

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
    stub: str = ""


NANOGPT = Source("nanoGPT", "github.com/karpathy/nanoGPT", "3adf61e154c3")
MINGPT = Source("minGPT", "github.com/karpathy/minGPT", "37baab71b9ab")
LLAMA2C = Source("llama2.c", "github.com/karpathy/llama2.c", "350e04fe3543")
EXAMPLES = Source("examples", "github.com/pytorch/examples", "77f55b912142")
GPT_FAST = Source("gpt-fast", "github.com/meta-pytorch/gpt-fast", "6ecad9b5b6b9")
VIT_PYTORCH = Source("vit-pytorch", "github.com/lucidrains/vit-pytorch", "69d24fe9e302")
PYG = Source("pytorch_geometric", "github.com/pyg-team/pytorch_geometric", "0116e7f06d4b")
PYG_GAT = Source("pytorch_geometric", "github.com/pyg-team/pytorch_geometric", "0333e262bc56")
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
        stub="its export.py, which writes files for C, is imported and not run",
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


# -- scripts that installed packages bring ---------------------------------------------------------


def _package(name: str, version: str) -> Source:
    return Source("", f"pypi.org/project/{name}", f"{name} {version}", package=True)


ACCELERATE = _package("accelerate", "1.15.0")
TRL = _package("trl", "1.16.0")
LITGPT = _package("litgpt", "0.5.13")
TORCHTUNE = _package("torchtune", "0.6.1")
TORCHTITAN = _package("torchtitan", "0.2.2")
OPEN_CLIP = _package("open-clip-torch", "3.3.0")
ULTRALYTICS = _package("ultralytics", "8.4.190")
STYLEGAN2 = _package("stylegan2-pytorch", "1.9.0")
WHISPER = _package("openai-whisper", "20250625")
RL_ZOO = _package("rl-zoo3", "2.9.2")
DENOISING = _package("denoising-diffusion-pytorch", "2.3.4")
LIGHTWEIGHT_GAN = _package("lightweight-gan", "1.2.1")

_ACCELERATE = [
    Script(
        f"accelerate/{name}",
        ACCELERATE,
        f"-m accelerate.test_utils.scripts.{name}",
        options=options,
        needs=("accelerate",),
    )
    for name, options in (
        ("test_script", ""),
        ("test_sync", ""),
        ("test_ddp_comm_hook", "--world-size 2"),
        ("test_ops", ""),
        ("test_distributed_data_loop", "--world-size 2 --rank all-distinct"),
    )
]

#: A Llama and a tokenizer of words that fit on a postage stamp.
_TINY_LLAMA = data.python(
    "from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast\n"
    "from tokenizers import Tokenizer, models, pre_tokenizers\n"
    "words = open('words.txt').read().split()\n"
    "names = ['<unk>', '<pad>', '<s>', '</s>', 'user', 'assistant', *sorted(set(words))]\n"
    "core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(names)}, unk_token='<unk>'))\n"
    "core.pre_tokenizer = pre_tokenizers.Whitespace()\n"
    "PreTrainedTokenizerFast(tokenizer_object=core, unk_token='<unk>', pad_token='<pad>', "
    "bos_token='<s>', eos_token='</s>', chat_template=\"{% for m in messages %}"
    "{{ m['role'] + ' ' + m['content'] + ' </s> ' }}{% endfor %}\").save_pretrained('llama')\n"
    "LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=128, "
    "num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)).save_pretrained('llama')"
)

_TALKS: list[dict[str, object]] = [
    {
        "prompt": [{"role": "user", "content": "the king said"}],
        "completion": [{"role": "assistant", "content": "O God"}],
    }
] * 32

_CHOICES: list[dict[str, object]] = [
    {
        "prompt": [{"role": "user", "content": "the king said"}],
        "chosen": [{"role": "assistant", "content": "O God"}],
        "rejected": [{"role": "assistant", "content": "a day"}],
    }
] * 32

_LIKED: list[dict[str, object]] = [
    {**talk, "label": index % 2 == 0} for index, talk in enumerate(_TALKS)
]

_TRL_COMMON = (
    "--dataset_name talks --output_dir out --per_device_train_batch_size 4 --max_steps 6 "
    "--report_to none --model_name_or_path llama"
)


def _trl(name: str, more: str, rows: list[dict[str, object]]) -> Script:
    return Script(
        f"trl/{name}",
        TRL,
        f"-m trl.scripts.{name.split(',')[0]} {_TRL_COMMON} {more}",
        data=(
            data.text("words.txt"),
            data.json_lines("talks/train.jsonl", rows),
            data.json_lines("talks/test.jsonl", rows),
            _TINY_LLAMA,
        ),
        needs=("trl", "transformers", "datasets", "peft"),
    )


_TRL = [
    _trl("sft", "", _TALKS),
    _trl("sft, LoRA and checkpoints", "--use_peft --gradient_checkpointing", _TALKS),
    _trl("dpo", "", _CHOICES),
    _trl("reward", "", _CHOICES),
    _trl("kto", "", _LIKED),
    _trl(
        "rloo",
        "--reward_model_name_or_path llama --num_generations 4 --max_completion_length 8",
        _TALKS,
    ),
    _trl(
        "grpo",
        "--reward_funcs think_format_reward --num_generations 4 --max_completion_length 8",
        _TALKS,
    ),
]

_LITGPT_MODEL = data.python(
    "import os, torch, yaml, json\n"
    "from dataclasses import asdict\n"
    "from litgpt import GPT, Config\n"
    "config = Config.from_name('pythia-14m', n_layer=3, padded_vocab_size=128)\n"
    "os.makedirs('tiny')\n"
    "torch.save(GPT(config).state_dict(), 'tiny/lit_model.pth')\n"
    "yaml.dump(asdict(config), open('tiny/model_config.yaml', 'w'))\n"
    "from tokenizers import Tokenizer, models, pre_tokenizers\n"
    "words = ['<unk>', '<s>', '</s>', *sorted(set(open('words.txt').read().split()))]\n"
    "core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token='<unk>'))\n"
    "core.pre_tokenizer = pre_tokenizers.Whitespace()\n"
    "core.save('tiny/tokenizer.json')\n"
    "json.dump({'bos_token': '<s>', 'eos_token': '</s>', 'tokenizer_class': "
    "'PreTrainedTokenizerFast'}, open('tiny/tokenizer_config.json', 'w'))\n"
    "json.dump({'bos_token_id': 1, 'eos_token_id': 2}, "
    "open('tiny/generation_config.json', 'w'))"
)

_TASKS: list[dict[str, object]] = [{"instruction": "the king said", "output": "O God"}] * 32

_LITGPT_DATA = (data.text("words.txt"), data.json_value("tasks.json", _TASKS), _LITGPT_MODEL)

_LITGPT_TRAIN = (
    "--data JSON --data.json_path tasks.json --data.val_split_fraction 0.2 --data.num_workers 0 "
    "--train.epochs 1 --train.micro_batch_size 2 --train.global_batch_size 4 --train.max_steps 6 "
    "--train.lr_warmup_steps 1 --eval.max_new_tokens 4 --eval.max_iters 2 --out_dir out"
)

_LITGPT = [
    Script(
        f"litgpt/{name}",
        LITGPT,
        f"-m litgpt {command}",
        data=_LITGPT_DATA,
        needs=("litgpt", "yaml"),
    )
    for name, command in (
        ("finetune_full", f"finetune_full tiny --precision bf16-true {_LITGPT_TRAIN}"),
        ("finetune_lora", f"finetune_lora tiny --precision bf16-true {_LITGPT_TRAIN}"),
        ("finetune_adapter", f"finetune_adapter tiny --precision bf16-true {_LITGPT_TRAIN}"),
        ("finetune_adapter_v2", f"finetune_adapter_v2 tiny --precision bf16-true {_LITGPT_TRAIN}"),
        ("generate", "generate tiny --prompt 'the king' --max_new_tokens 12"),
    )
]

_TORCHTUNE_MODEL = data.python(
    "import os, torch, sentencepiece\n"
    "os.makedirs('tiny')\n"
    "sentencepiece.SentencePieceTrainer.train(input='words.txt', vocab_size=60, "
    "model_prefix='tiny/tokenizer', hard_vocab_limit=False, pad_id=3)\n"
    "from torchtune.models.llama2 import llama2\n"
    "model = llama2(vocab_size=64, num_layers=2, num_heads=4, num_kv_heads=4, embed_dim=64, "
    "max_seq_len=128)\n"
    "torch.save(model.state_dict(), 'tiny/model.pt')"
)

_TORCHTUNE_COMMON = (
    "model.vocab_size=64 model.num_layers=2 model.num_heads=4 model.num_kv_heads=4 "
    "model.embed_dim=64 model.max_seq_len=128 tokenizer.path=tiny/tokenizer.model "
    "checkpointer._component_=torchtune.training.FullModelTorchTuneCheckpointer "
    "checkpointer.checkpoint_dir=tiny checkpointer.checkpoint_files=[model.pt] output_dir=out "
    "dataset._component_=torchtune.datasets.text_completion_dataset dataset.source=json "
    "dataset.data_files=texts.json dataset.column=text dataset.split=train "
    "max_steps_per_epoch=6 batch_size=2 gradient_accumulation_steps=1"
)

_TEXTS: list[dict[str, object]] = [{"text": "the king said to the queen of night O God"}] * 32


def _torchtune(recipe: str, config: str, more: str) -> Script:
    return Script(
        f"torchtune/{recipe}",
        TORCHTUNE,
        f"-m torchtune._cli.tune run {recipe} --config {config} {_TORCHTUNE_COMMON} {more}",
        data=(data.text("words.txt"), data.json_value("texts.json", _TEXTS), _TORCHTUNE_MODEL),
        needs=("torchtune", "sentencepiece", "torchao"),
        stub="beside torchao 0.10; it cannot be imported beside 0.18",
    )


_TORCHTUNE = [
    _torchtune(
        "full_finetune_single_device",
        "llama2/7B_full_low_memory",
        "model._component_=torchtune.models.llama2.llama2 optimizer._component_=torch.optim.AdamW",
    ),
    _torchtune(
        "lora_finetune_single_device",
        "llama2/7B_lora_single_device",
        "model._component_=torchtune.models.llama2.lora_llama2",
    ),
]

_TORCHTITAN_DATA = (
    data.text("words.txt"),
    data.json_lines("tests/assets/c4_test/data.json", _TEXTS * 400),
    data.python(
        "import os, json\n"
        "from tokenizers import Tokenizer, models, pre_tokenizers\n"
        "names = ['<unk>', '<s>', '</s>', *sorted(set(open('words.txt').read().split()))]\n"
        "core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(names)}, "
        "unk_token='<unk>'))\n"
        "core.pre_tokenizer = pre_tokenizers.Whitespace()\n"
        "os.makedirs('tests/assets/tokenizer')\n"
        "core.save('tests/assets/tokenizer/tokenizer.json')\n"
        "json.dump({'bos_token': '<s>', 'eos_token': '</s>'}, "
        "open('tests/assets/tokenizer/tokenizer_config.json', 'w'))"
    ),
)

_TORCHTITAN = [
    Script(
        f"torchtitan/train, {name}",
        TORCHTITAN,
        f"torchrun --nproc_per_node={num} -m torchtitan.train --model.name llama3 "
        "--model.flavor debugmodel --model.hf_assets_path tests/assets/tokenizer "
        "--training.dataset c4_test --training.seq_len 512 --training.local_batch_size 4 "
        f"--training.steps 6 {more}",
        data=_TORCHTITAN_DATA,
        needs=("torchtitan", "torchdata", "tyro", "datasets"),
    )
    for name, num, more in (
        ("1 GPU", 1, ""),
        ("4 GPUs, sharded and compiled", 4, "--compile.enable --activation_checkpoint.mode full"),
    )
]

_OPEN_CLIP = [
    Script(
        f"open_clip/train, {model}",
        OPEN_CLIP,
        f"-m open_clip_train.main --dataset-type synthetic --train-num-samples 32 --batch-size 4 "
        f"--model {model} --epochs 1 --workers 0 --precision amp_bf16 --logs out",
        needs=("open_clip", *_VISION),
    )
    for model in ("ViT-B-32", "RN50")
]

_ULTRALYTICS = [
    Script(
        "ultralytics/yolo train",
        ULTRALYTICS,
        "{bin}/yolo detect train model=yolov8n.yaml data=tiny.yaml epochs=1 imgsz=64 batch=2 "
        "device=0 workers=0 amp=False plots=False",
        data=(
            data.images("images", num=8, side=64),
            *(data.file(f"labels/{i:03}.txt", "0 0.5 0.5 0.4 0.4\n") for i in range(8)),
            data.file("tiny.yaml", "path: .\ntrain: images\nval: images\nnames: {0: king}\n"),
        ),
        needs=("ultralytics", *_VISION),
    ),
]


def _yolo(task: str, command: str, label: str, more: str = "") -> Script:
    """Ultralytics' command for a task; `label` is an object as the task wants it described."""
    return Script(
        f"ultralytics/{task}",
        ULTRALYTICS,
        f"{{bin}}/yolo {command} imgsz=64 batch=2 device=0 workers=0 plots=False",
        data=(
            data.images("images", num=8, side=64),
            *(data.file(f"labels/{i:03}.txt", label + "\n") for i in range(8)),
            data.file(
                "tiny.yaml", f"path: .\ntrain: images\nval: images\nnames: {{0: king}}\n{more}"
            ),
            data.images("shapes/train", classes=("a", "b"), side=64),
            data.images("shapes/val", classes=("a", "b"), side=64),
        ),
        needs=("ultralytics", *_VISION),
    )


_TRAINED = "data=tiny.yaml epochs=1 amp=False"
_BOX = "0 0.5 0.5 0.4 0.4"

_ULTRALYTICS += [
    _yolo(
        "yolo segment", f"segment train model=yolov8n-seg.yaml {_TRAINED}", "0 .2 .2 .8 .2 .5 .8"
    ),
    _yolo(
        "yolo pose",
        f"pose train model=yolov8n-pose.yaml {_TRAINED}",
        f"{_BOX} " + "0.5 0.5 2 " * 17,
        "kpt_shape: [17, 3]\n",
    ),
    _yolo("yolo obb", f"obb train model=yolov8n-obb.yaml {_TRAINED}", "0 .2 .2 .8 .2 .8 .8 .2 .8"),
    _yolo(
        "yolo classify",
        "classify train model=yolov8n-cls.yaml data=shapes epochs=1 amp=False",
        _BOX,
    ),
    _yolo("rtdetr train", f"detect train model=rtdetr-l.yaml {_TRAINED}", _BOX),
    _yolo("yolo predict", "detect predict model=yolov8n.yaml source=images", _BOX),
]

#: Classes of vit-pytorch, and what each is built with and called on. All are given an image of
#: 64 x 64 where nothing else is said.
_VITS = """
import torch
from vit_pytorch import SimpleViT, ViT
from vit_pytorch.cait import CaiT
from vit_pytorch.cct import CCT
from vit_pytorch.cross_vit import CrossViT
from vit_pytorch.deepvit import DeepViT
from vit_pytorch.levit import LeViT
from vit_pytorch.max_vit import MaxViT
from vit_pytorch.mobile_vit import MobileViT
from vit_pytorch.na_vit import NaViT
from vit_pytorch.nest import NesT
from vit_pytorch.pit import PiT
from vit_pytorch.regionvit import RegionViT
from vit_pytorch.t2t import T2TViT
from vit_pytorch.twins_svt import TwinsSVT
from vit_pytorch.vit_3d import ViT as ViT3D
from vit_pytorch.vit_for_small_dataset import ViT as SmallViT
from vit_pytorch.xcit import XCiT

sizes = dict(image_size=64, num_classes=10, dim=64, heads=4, mlp_dim=128)
plain = dict(sizes, patch_size=16, depth=2)
models = {
    ViT: plain, SimpleViT: plain, DeepViT: plain, SmallViT: plain, NaViT: plain,
    CaiT: dict(plain, cls_depth=1), XCiT: dict(plain, cls_depth=1),
    T2TViT: dict(image_size=64, num_classes=10, dim=64, depth=2, heads=4, mlp_dim=128,
                 t2t_layers=((7, 4), (3, 2))),
    CCT: dict(img_size=64, embedding_dim=64, n_conv_layers=1, num_layers=2, num_heads=4,
              mlp_ratio=2.0, num_classes=10),
    CrossViT: dict(image_size=64, num_classes=10, depth=1, sm_dim=32, lg_dim=64, sm_patch_size=16,
                   lg_patch_size=32, sm_enc_depth=1, lg_enc_depth=1, cross_attn_depth=1),
    LeViT: dict(image_size=64, num_classes=10, stages=2, dim=(64, 128), depth=1, heads=(2, 4),
                mlp_mult=2, dropout=0.1),
    MaxViT: dict(num_classes=10, dim_conv_stem=16, dim=16, dim_head=16, depth=(1, 1), window_size=4,
                 mbconv_expansion_rate=2, mbconv_shrinkage_rate=0.25, dropout=0.1),
    MobileViT: dict(image_size=(64, 64), dims=[16, 24, 32], num_classes=10,
                    channels=[16, 16, 24, 24, 32, 32, 48, 48, 64, 64, 96]),
    NesT: dict(image_size=64, patch_size=4, dim=32, heads=2, num_hierarchies=3,
               block_repeats=(1, 1, 1), num_classes=10),
    PiT: dict(image_size=64, patch_size=8, dim=32, num_classes=10, depth=(1, 1), heads=2,
              mlp_dim=64),
    RegionViT: dict(dim=(16, 32, 64, 128), depth=(1, 1, 1, 1), window_size=2, num_classes=10),
    TwinsSVT: dict(num_classes=10, s1_emb_dim=16, s2_emb_dim=32, s3_emb_dim=32, s4_emb_dim=64,
                   s1_local_patch_size=2, s2_local_patch_size=2, s3_local_patch_size=2,
                   s4_local_patch_size=1, s1_global_k=2, s2_global_k=2, s3_global_k=1,
                   s4_global_k=1),
    ViT3D: dict(plain, image_patch_size=16, frames=4, frame_patch_size=2),
}
models[ViT3D].pop("patch_size")


def loss_of(model, images):
    return model(images).float().pow(2).mean()


def train(name, model, images):
    model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model, images)
        loss.backward()
        optimizer.step()
    print(name, loss.item())


for kind, options in models.items():
    images = torch.randn(2, 3, *((4,) if kind is ViT3D else ()), 64, 64, device="cuda")
    given = [list(images)] if kind is NaViT else images
    train(kind.__module__, kind(**options), given)
"""

_VIT = [
    Script(
        "vit-pytorch/training steps of 18 models",
        VIT_PYTORCH,
        "train_all.py",
        options="--steps all",
        data=(data.file("train_all.py", _VITS),),
        needs=("einops", *_VISION),
        stub="a loop over its classes: it has no script of its own",
    )
]

#: Cora in Planetoid's own format and size, with random words and citations.
_PLANETOID = (
    "import os, pickle, numpy, scipy.sparse\n"
    "from random import Random\n"
    "os.makedirs('FOLDER'); random = Random(5); numpy.random.seed(5)\n"
    "words = lambda rows: scipy.sparse.random(rows, 1433, 0.01, format='csr', dtype='float32')\n"
    "classes = lambda rows: numpy.eye(7, dtype='int32')[numpy.random.randint(0, 7, rows)]\n"
    "allx, ally = words(1708), classes(1708)\n"
    "parts = dict(x=allx[:140], y=ally[:140], tx=words(1000), ty=classes(1000), allx=allx, "
    "ally=ally, graph={i: [random.randrange(2708) for _ in range(2)] for i in range(2708)})\n"
    "[pickle.dump(v, open(f'FOLDER/ind.cora.{k}', 'wb')) for k, v in parts.items()]\n"
    "open('FOLDER/ind.cora.test.index', 'w').write('\\n'.join(map(str, range(1708, 2708))))"
)

_PYG = [
    Script(
        f"pytorch_geometric/{name}",
        source,
        command,
        data=(data.python(_PLANETOID.replace("FOLDER", folder)),),
        needs=("torch_geometric", "scipy"),
    )
    for name, source, command, folder in (
        ("gcn", PYG, "examples/gcn.py --epochs 20", "data/Planetoid/Cora/raw"),
        ("gat", PYG_GAT, "examples/gat.py", "data/Cora/Cora/raw"),
    )
]

#: A Whisper of its smallest size with random weights, a second of noise, and ffmpeg.
_WHISPER_FILES = data.python(
    "import os, struct, torch, wave, whisper, imageio_ffmpeg\n"
    "from random import Random\n"
    "from dataclasses import asdict\n"
    "dims = whisper.ModelDimensions(n_mels=80, n_audio_ctx=1500, n_audio_state=64, n_audio_head=2, "
    "n_audio_layer=2, n_vocab=51865, n_text_ctx=24, n_text_state=64, n_text_head=2, "
    "n_text_layer=2)\n"
    "model = whisper.model.Whisper(dims)\n"
    "torch.save({'dims': asdict(dims), 'model_state_dict': model.state_dict()}, 'tiny.pt')\n"
    "os.makedirs('tools'); os.symlink(imageio_ffmpeg.get_ffmpeg_exe(), 'tools/ffmpeg')\n"
    "file = wave.open('sound.wav', 'wb'); file.setparams((1, 2, 16000, 16000, 'NONE', ''))\n"
    "file.writeframes(Random(5).randbytes(32000)); file.close()"
)

_WHISPER = [
    Script(
        f"whisper/{name}",
        WHISPER,
        f"{{bin}}/whisper sound.wav --model tiny.pt --temperature 0 --fp16 True {more}",
        data=(_WHISPER_FILES,),
        needs=("whisper", "imageio_ffmpeg"),
        environment={"PATH": os.pathsep.join(("tools", os.environ.get("PATH", "")))},
    )
    for name, more in (
        ("transcribe", "--language en"),
        ("translate, beams", "--language de --task translate --beam_size 3"),
        ("times of words", "--word_timestamps True"),
    )
]

_RL_ZOO = [
    Script(
        f"rl_zoo3/{algorithm}",
        RL_ZOO,
        f"-m rl_zoo3.train --algo {algorithm} --env {game} -n {steps} --eval-freq -1 --device cuda "
        f"--log-folder out --hyperparams {settings}",
        needs=("rl_zoo3", "gymnasium"),
    )
    for algorithm, game, steps, settings in (
        ("dqn", "CartPole-v1", 400, "learning_starts:100"),
        ("a2c", "CartPole-v1", 400, "n_envs:2"),
        ("ppo", "CartPole-v1", 512, "n_envs:2 n_steps:64 batch_size:32 n_epochs:2"),
        ("sac", "Pendulum-v1", 140, "learning_starts:100"),
        ("td3", "Pendulum-v1", 240, "learning_starts:100"),
        ("qrdqn", "CartPole-v1", 400, "learning_starts:100"),
    )
]

_DIFFUSION = """
from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet

model = Unet(dim=16, dim_mults=(1, 2))
diffusion = GaussianDiffusion(model, image_size=32, timesteps=100, sampling_timesteps=4)
Trainer(
    diffusion,
    "images",
    train_batch_size=8,
    train_lr=8e-5,
    train_num_steps=6,
    gradient_accumulate_every=2,
    ema_decay=0.995,
    amp=True,
    calculate_fid=False,
    save_and_sample_every=5,
    num_samples=4,
).train()
"""

_DENOISING = [
    Script(
        "denoising-diffusion-pytorch/Trainer",
        DENOISING,
        "train.py",
        data=(data.images("images", num=120, side=32), data.file("train.py", _DIFFUSION)),
        needs=("denoising_diffusion_pytorch", *_VISION),
        stub="as in its README: it has no script of its own",
    )
]

_GANS = [
    Script(
        "stylegan2-pytorch",
        STYLEGAN2,
        "{bin}/stylegan2_pytorch --data images --image_size 32 --num_train_steps 6 "
        "--batch_size 2 --num_workers 0 --network_capacity 4",
        data=(data.images("images", num=8, side=64),),
        needs=("stylegan2_pytorch", "fire", "termcolor", "aim", *_VISION),
    ),
    Script(
        "lightweight-gan",
        LIGHTWEIGHT_GAN,
        "{bin}/lightweight_gan --data images --image_size 64 --num_train_steps 6 --batch_size 2 "
        "--num_workers 0",
        data=(data.images("images", num=8, side=64),),
        needs=("lightweight_gan", *_VISION),
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
    *_ACCELERATE,
    *_TRL,
    *_LITGPT,
    *_TORCHTUNE,
    *_TORCHTITAN,
    *_OPEN_CLIP,
    *_ULTRALYTICS,
    *_VIT,
    *_PYG,
    *_WHISPER,
    *_RL_ZOO,
    *_DENOISING,
    *_GANS,
)
