"""Carries out the statements in the arguments, and prints the error of each."""

import sys
from pathlib import Path

import numpy as np

import accelera
from accelera.simulator import score, train_scorer
from accelera.trace import read_trace, write_trace

a, engine = np.ones((9, 9)), accelera.MatrixEngine()
trace = accelera.generate_synthetic_trace(num_layers=1)
write_trace(trace, "x.json")
Path("model").mkdir()
Path("model/config.json").write_text("{}")
names = dict(vars(), score=score, train_scorer=train_scorer, read_trace=read_trace, engine=engine)
for statement in sys.argv[1:]:
    try:
        exec(statement, names)
    except accelera.BackendMissingError as error:
        print(error)
    except BaseException as error:
        print(statement, "raised", repr(error))
    else:
        print(statement, "passed")
