from .hierarchy import Compute as Compute
from .hierarchy import Hierarchy as Hierarchy
from .hierarchy import Tier as Tier
from .ledger import budget as budget
from .ledger import budget_report as budget_report
from .manager import MemoryManager as MemoryManager
from .probe import process_memory as process_memory
from .probe import reset_peak as reset_peak
