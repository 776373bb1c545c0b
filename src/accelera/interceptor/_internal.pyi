from .statistics import OpStats as OpStats
from .statistics import Stats as Stats
