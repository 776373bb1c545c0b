from .api import capture as capture
from .api import capture_script as capture_script
from .api import live_bytes as live_bytes
from .api import peak_live_bytes as peak_live_bytes
