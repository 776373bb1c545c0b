from .api import offload as offload
from .api import offload_checkpoint as offload_checkpoint
from .api import offloaded as offloaded
from .handle import Offloaded as Offloaded
from .planning.plan import OffloadPlan as OffloadPlan
from .planning.planner import plan_offload as plan_offload
from .tensor import OffloadedTensor as OffloadedTensor
