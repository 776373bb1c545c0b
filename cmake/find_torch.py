"""Print the folder of the torch that Python would import, and its version, without importing it."""

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

found = find_spec("torch")
if found is None or found.origin is None:
    sys.exit("no torch")
folder = Path(found.origin).parent
version = runpy.run_path(str(folder / "version.py"))["__version__"]
sys.stdout.write(f"{folder};{version}")
