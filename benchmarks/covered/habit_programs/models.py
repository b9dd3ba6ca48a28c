"""transformers' models as people call them."""

from __future__ import annotations

from typing import Any

import torch

from covered.habit_programs.habit import habit


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            vocab_size=1000,
        )
    )


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=1000))


def _generated(**options: Any) -> Any:
    model = _llama().cuda().bfloat16().eval()
    prompt = torch.randint(3, 1000, (2, 16), device="cuda")
    out = model.generate(prompt, max_new_tokens=20, **options)
    assert 16 < out.shape[1] <= 36, out.shape
    return out


@habit("transformers", is_sampled=True)
def generated_greedily() -> None:
    _generated(do_sample=False)


@habit("transformers")
def generated_by_sampling() -> None:
    _generated(do_sample=True, top_k=50, top_p=0.9, temperature=0.7, repetition_penalty=1.1)


@habit("transformers")
def generated_by_beams() -> None:
    model, calls = _llama().cuda().bfloat16().eval(), []
    model.register_forward_hook(lambda *args: calls.append(1))
    prompt = torch.randint(3, 1000, (2, 16), device="cuda")
    out = model.generate(prompt, max_new_tokens=20, num_beams=4)
    # How long the best beam became depends on values; all tokens were computed.
    assert len(calls) == 20 and out.shape[0] == 2


@habit("transformers")
def generated_with_a_static_cache() -> None:
    _generated(do_sample=False, cache_implementation="static")


@habit("transformers")
def generated_with_an_offloaded_cache() -> None:
    _generated(do_sample=False, cache_implementation="offloaded")


@habit("transformers")
def generated_with_an_offloaded_static_cache() -> None:
    _generated(do_sample=False, cache_implementation="offloaded_static")


@habit("transformers")
def generated_until_a_criterion() -> None:
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Never(StoppingCriteria):
        def __call__(self, ids: Any, scores: Any, **others: Any) -> Any:
            return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

    _generated(do_sample=False, stopping_criteria=StoppingCriteriaList([Never()]))


@habit("transformers")
def generated_with_an_assistant() -> None:
    model, assistant = (_llama().cuda().bfloat16().eval() for _ in range(2))
    prompt = torch.randint(3, 1000, (1, 16), device="cuda")
    out = model.generate(prompt, max_new_tokens=10, assistant_model=assistant, do_sample=False)
    assert out.shape[1] > 16


@habit("transformers")
def decoded_by_hand() -> None:
    model = _llama().cuda().eval()
    ids, past = torch.randint(3, 1000, (2, 16), device="cuda"), None
    with torch.inference_mode():
        for _ in range(4):
            out = model(ids, past_key_values=past, use_cache=True)
            past = out.past_key_values
            ids = out.logits[:, -1].argmax(-1, keepdim=True)
    assert past.get_seq_length() == 19


@habit("transformers")
def trainer() -> None:
    from transformers import Trainer, TrainingArguments

    rows = [
        {"input_ids": torch.randint(0, 1000, (64,)), "labels": torch.randint(0, 1000, (64,))}
        for _ in range(64)
    ]
    arguments = TrainingArguments(
        "trained", max_steps=5, per_device_train_batch_size=4, bf16=True, report_to=[],
        logging_steps=1, save_steps=3, eval_strategy="steps", eval_steps=3,
        gradient_checkpointing=True, dataloader_num_workers=1,
    )  # fmt: skip
    run = Trainer(_gpt2(), arguments, train_dataset=rows, eval_dataset=rows[:8])
    run.train()
    assert "eval_loss" in run.evaluate()


@habit("transformers")
def trainer_that_compiles() -> None:
    from transformers import Trainer, TrainingArguments

    rows = [
        {"input_ids": torch.randint(0, 1000, (64,)), "labels": torch.randint(0, 1000, (64,))}
        for _ in range(64)
    ]
    arguments = TrainingArguments(
        "trained", max_steps=3, per_device_train_batch_size=4, fp16=True, report_to=[],
        torch_compile=True, optim="adafactor",
    )  # fmt: skip
    Trainer(_gpt2(), arguments, train_dataset=rows).train()


@habit("transformers", "accelerate")
def loaded_with_a_device_map() -> None:
    from transformers import AutoModelForCausalLM

    _gpt2().save_pretrained("gpt2")
    model = AutoModelForCausalLM.from_pretrained("gpt2", dtype=torch.bfloat16, device_map="auto")
    assert next(model.parameters()).device.type == "cuda"
    model(torch.randint(0, 100, (2, 8), device="cuda")).logits.sum().item()


@habit("transformers")
def saved_and_loaded_pretrained() -> None:
    from transformers import AutoModelForCausalLM

    model = _gpt2().cuda()
    model.save_pretrained("gpt2")
    again = AutoModelForCausalLM.from_pretrained("gpt2", dtype=torch.float16).to("cuda")
    again.gradient_checkpointing_enable()
    ids = torch.randint(0, 100, (2, 8), device="cuda")
    again.train()(input_ids=ids, labels=ids).loss.backward()


@habit("transformers")
def pipeline_for_text() -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast, pipeline

    words = Tokenizer(WordLevel({"hello": 0, "world": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    run = pipeline("text-generation", _gpt2(), tokenizer=tokenizer, device="cuda")
    assert run("hello world", max_new_tokens=5)[0]["generated_text"].startswith("hello")


@habit("transformers", "flash_attn")
def flash_attention_2_asked_for() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=1000, attn_implementation="flash_attention_2",
    )  # fmt: skip
    model = LlamaForCausalLM(config).cuda().bfloat16()
    model(torch.randint(3, 1000, (2, 16), device="cuda"))


@habit("transformers")
def attention_implementations() -> None:
    for name in ("eager", "sdpa"):
        model = _llama().cuda().bfloat16()
        model.set_attn_implementation(name)
        ids = torch.randint(3, 1000, (2, 16), device="cuda")
        mask = torch.ones_like(ids)
        mask[0, :4] = 0
        model(ids, attention_mask=mask, labels=ids).loss.backward()
