"""Names of this package for the other packages of Accelera; not part of the public interface."""

from accelera.policy.contract import KEPT, next_reads
from accelera.policy.iteration_replay import access_signatures, occurrences, replay_next_uses
from accelera.policy.policies import heuristic_scores, native_knowledge, needs, prepare

__all__ = [
    "KEPT",
    "access_signatures",
    "heuristic_scores",
    "native_knowledge",
    "needs",
    "next_reads",
    "occurrences",
    "prepare",
    "replay_next_uses",
]
