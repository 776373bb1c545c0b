from .block_cache import OffloadReport as OffloadReport
