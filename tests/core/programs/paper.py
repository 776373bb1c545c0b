"""Traces and the simulator, with the core alone: what needs no table and no Parquet file."""

from accelera import (
    advise,
    generate_synthetic_trace,
    predict_compile,
    simulate,
    sweep,
    validate_trace,
)
from accelera.trace import write_trace

trace = generate_synthetic_trace("Transformer", num_layers=2)
assert simulate(trace, "50%", "lru").table()
assert advise(trace, budget="50%").table()
assert sweep(trace, ["lru", "planner"], ["50%"]).table()
assert validate_trace(trace)
assert predict_compile("y = x @ w")
write_trace(trace, "t.json")
write_trace(trace, "t.perfetto.json")
