"""Adapters by peft in a tiny GPT-2, trained by the Hugging Face Trainer."""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
starts = torch.randint(0, 50, (128, 1))
tokens = (starts + torch.arange(16)) % 50  # each token is followed by the next
dataset = [{"input_ids": row, "labels": row} for row in tokens]
dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
special = {"bos_token_id": 0, "eos_token_id": 0}
sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
config = GPT2Config(**sizes, initializer_range=0.3, **dropout, **special)
adapters = LoraConfig(r=16, lora_alpha=32, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True)
model = get_peft_model(GPT2LMHeadModel(config), adapters)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=16,
    num_train_epochs=4,
    learning_rate=1e-2,
    lr_scheduler_type="constant",
    report_to=[],
    use_cpu=True,
    save_strategy="no",
    disable_tqdm=True,
)
Trainer(model=model, args=arguments, train_dataset=dataset).train()
