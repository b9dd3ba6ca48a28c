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
    `options`, in the folder `inside`; `{bin}` is where packages put their commands. `limit` is
    what it says where it meets a documented limit; `cannot` why it runs nowhere here, on a CPU
    either; `stand_in` what a user has and this did not."""

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


# -- scripts that installed packages bring ---------------------------------------------------------


def _package(name: str, version: str) -> Source:
    return Source("", f"pypi.org/project/{name}", f"{name} {version}", package=True)


ACCELERATE = _package("accelerate", "1.15.0")
TRL = _package("trl", "1.16.0")
LITGPT = _package("litgpt", "0.5.13")
TORCHTUNE = _package("torchtune", "0.6.1")
TORCHTITAN = _package("torchtitan", "0.3.0")
OPEN_CLIP = _package("open-clip-torch", "3.3.0")
ULTRALYTICS = _package("ultralytics", "8.4.190")
STYLEGAN2 = _package("stylegan2-pytorch", "1.9.0")
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
    "config = Config.from_name('pythia-14m', n_layer=2, padded_vocab_size=128)\n"
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
        ("generate", "generate tiny --prompt 'the king' --max_new_tokens 12"),
        (
            "pretrain",
            "pretrain --model_config tiny/model_config.yaml --tokenizer_dir tiny --data JSON "
            "--data.json_path tasks.json --data.val_split_fraction 0.2 --data.num_workers 0 "
            "--train.micro_batch_size 2 --train.global_batch_size 4 --train.max_tokens 2000 "
            "--train.max_seq_length 32 --eval.max_iters 2 --out_dir out",
        ),
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
        stand_in="beside torchao 0.10; it cannot be imported beside 0.18",
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
        f"torchrun --nproc_per_node={num} -m torchtitan.train --module llama3 "
        f"--config llama3_debugmodel --training.steps 6 {more}",
        data=_TORCHTITAN_DATA,
        needs=("torchtitan", "spmd_types", "torchdata"),
        cannot="its release needs a later torch (torch.distributed.set_timeout)",
    )
    for name, num, more in (("1 GPU", 1, ""), ("4 GPUs", 4, ""))
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

_GANS = [
    Script(
        "stylegan2-pytorch",
        STYLEGAN2,
        "{bin}/stylegan2_pytorch --data images --image_size 32 --num_train_steps 6 "
        "--batch_size 2 --num_workers 0 --network_capacity 4",
        data=(data.images("images", num=8, side=64),),
        needs=("stylegan2_pytorch", "fire", "termcolor", *_VISION),
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
    *_GANS,
)
