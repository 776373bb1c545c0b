"""Tensors, modules and whole trainings in files, in the safetensors format; nothing is pickled."""

from accelera.tensora.serialization.checkpoint import load_checkpoint, save_checkpoint
from accelera.tensora.serialization.files import load_file, load_model, save_file, save_model

__all__ = ["load_checkpoint", "load_file", "load_model", "save_checkpoint", "save_file", "save_model"]
