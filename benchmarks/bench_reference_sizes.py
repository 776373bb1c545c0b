"""Buffer sizes in captured models, which ``validate_trace`` compares with.

python -m benchmarks reference_sizes            show them
python -m benchmarks reference_sizes --write    put them into the package
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from accelera.simulator import validation
from benchmarks.models import reference_traces

QUANTILES = 200


def main(arguments: list[str]) -> dict[str, Any]:
    """Print the quartiles per model; write the quantiles if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks reference_sizes")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args([each for each in arguments if not each.startswith("--save")])
    traces = reference_traces(2 if options.small else 3, small=options.small)
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    found: dict[str, Any] = {}
    for name, trace in traces.items():
        found[name] = np.quantile(trace.size_bytes, shares, method="inverted_cdf").tolist()
        print(name, "bytes, quartiles:", np.quantile(trace.size_bytes, (0.25, 0.5, 0.75)).tolist())
    if options.write:
        path = Path(validation.__file__).with_name(validation.REFERENCE)
        path.write_text(json.dumps(found) + "\n")
        print("wrote", path)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
