"""Language models whose weights are loaded by the names that Hugging Face's have."""

from accelera.tensora.models.gpt2 import GPT2, GPT2Config
from accelera.tensora.models.llama import Llama, LlamaConfig

__all__ = ["GPT2", "GPT2Config", "Llama", "LlamaConfig"]
