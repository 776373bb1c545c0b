from .lightning_callback import LightningCallback as LightningCallback
from .memory_scalars import log_memory as log_memory
from .transformers_callback import TransformersCallback as TransformersCallback
