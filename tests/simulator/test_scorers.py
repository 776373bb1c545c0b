"""Scorers: the seed's formula, causal features, a language model that is asked once, and the gate."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera import predict_eviction_scores
from accelera.errors import BackendMissingError, ScorerError, UnknownNameError
from accelera.simulator import gated, generate_synthetic_trace, score, simulate, train_scorer
from accelera.simulator._internal import PLAIN, SCORERS
from accelera.simulator.scorer_gate import head
from accelera.simulator.scorers import llm
from accelera.simulator.scorers.learned import (
    FEATURES,
    features,
    learned_scores,
    next_distances,
    shipped_model,
)
from accelera.simulator.scorers.llm import MOST_TENSORS, Ranking, chosen_tensors, parsed_ranking, prompt_for
from accelera.trace import Trace
from accelera.trace._internal import NEVER

EVERYTHING = 1 << 60


@cache
def training(model: str = "Transformer", layers: int = 3) -> Trace:
    return generate_synthetic_trace(model, layers, 4, 64, mode="training", steps=3)


@cache
def captured() -> dict[str, Trace]:
    """Small real models, captured."""
    from benchmarks.models import reference_traces

    return reference_traces(2, small=True)


def peak(trace: Trace) -> int:
    return simulate(trace, EVERYTHING).peak_bytes


class TestTable:
    def test_heuristic_is_the_seeds_formula(self) -> None:
        trace = Trace.from_arrays([0, 1, 0, 2, 1], [8, 4, 8, 2, 4], strides=[1, 1, 4, 2, 1])
        table = predict_eviction_scores(trace, scorer="heuristic")
        # distances: first, first, 1, first, 2; a first use counts as 0
        reuse, size, stride = [0, 0, 1 / 2, 0, 1], [1, 0.5, 1, 0.25, 0.5], [0.25, 0.25, 1, 0.5, 0.25]
        wanted = [0.4 * s + 0.5 * r + 0.1 * t for s, r, t in zip(size, reuse, stride, strict=True)]
        np.testing.assert_allclose(table.eviction_score, wanted, rtol=1e-12)

    @pytest.mark.parametrize("scorer", ["heuristic", "replay", "learned"])
    def test_scores_lie_in_0_to_1_where_something_is_accessed(self, scorer: str) -> None:
        pytest.importorskip("lightgbm", reason="the extra learned is not installed")
        trace = training()
        table = predict_eviction_scores(trace, scorer=scorer)
        assert len(table) == len(trace)
        assert table.eviction_score[trace.is_access].between(0, 1).all()
        assert table.eviction_score[~trace.is_access].isna().all()

    @pytest.mark.parametrize("scorer", ["replay", "heuristic"])
    def test_the_table_evicts_as_the_scores_do(self, scorer: str) -> None:
        trace = training()
        given_scores = predict_eviction_scores(trace, scorer).eviction_score[trace.is_access].to_numpy(float)
        reports = [
            simulate(trace, peak(trace) // 2, "scored", score=each)
            for each in (given_scores, score(trace, scorer))
        ]
        assert reports[0].to_dict() == reports[1].to_dict()

    def test_a_table_is_taken_too(self) -> None:
        trace = training()
        first = predict_eviction_scores(trace)
        again = predict_eviction_scores(trace.with_meta(iterations=None).to_pandas(), "heuristic")
        assert len(first) == len(again)

    def test_replay_is_the_default(self) -> None:
        trace = training()
        assert predict_eviction_scores(trace).equals(predict_eviction_scores(trace, "replay"))

    def test_it_says_that_it_is_not_gated(self) -> None:
        gate = predict_eviction_scores(training()).attrs["gate"]
        assert gate["checked"] is False
        assert "replay was not compared" in gate["reason"]
        assert "hierarchy=" in gate["reason"]

    @pytest.mark.parametrize("capacity", ["20%", "50%", "copilot"])
    def test_with_a_memory_the_gate_says_whether_to_follow_it(self, capacity: str) -> None:
        trace = training()
        table = predict_eviction_scores(trace, "heuristic", hierarchy=capacity, lookahead=1)
        wanted = gated(trace, "heuristic", capacity, lookahead=1).to_dict()
        assert table.attrs["gate"] == {"checked": True, **wanted}
        scores = table.eviction_score.dropna().to_numpy()
        report = simulate(trace, capacity, "scored", score=scores, lookahead=1)
        assert report.moved_bytes == wanted["scorer_bytes"]
        assert table.equals(predict_eviction_scores(trace, "heuristic"))

    def test_a_scorer_that_loses_is_said_to(self) -> None:
        """The seed's formula moves more than LRU on the seed's own request."""
        gate = predict_eviction_scores(generate_synthetic_trace(), "heuristic", hierarchy="copilot").attrs[
            "gate"
        ]
        assert not gate["accepted"]
        assert gate["policy"] == "lru"
        assert "lru is used" in gate["reason"]

    @pytest.mark.parametrize("trace", [Trace.from_arrays([], []), Trace.from_arrays([0, 1, 0], 8)])
    def test_where_nothing_is_evicted_no_scorer_is_praised(self, trace: Trace) -> None:
        gate = predict_eviction_scores(trace, "heuristic", hierarchy="1GiB").attrs["gate"]
        assert "makes no difference" in gate["reason"]

    def test_an_unknown_memory_is_named(self) -> None:
        with pytest.raises(UnknownNameError, match="laptop"):
            predict_eviction_scores(training(), hierarchy="labtop")

    def test_an_unknown_scorer_is_named(self) -> None:
        with pytest.raises(UnknownNameError, match="replay"):
            score(training(), "reply")
        assert SCORERS == ("heuristic", "replay", "learned", "llm")

    def test_an_empty_trace(self) -> None:
        empty = Trace.from_arrays([], [])
        for scorer in ("heuristic", "replay"):
            assert len(predict_eviction_scores(empty, scorer)) == 0


class TestFeatures:
    @settings(max_examples=30, deadline=None)
    @given(
        ids=st.lists(st.integers(0, 6), min_size=2, max_size=60),
        cut=st.integers(1, 59),
    )
    def test_nothing_depends_on_what_comes_later(self, ids: list[int], cut: int) -> None:
        trace = Trace.from_arrays(
            ids, [8 << each for each in ids], ops=["a" if each % 3 else "b" for each in ids]
        )
        known = min(cut, len(ids))
        np.testing.assert_array_equal(features(trace)[:known], features(head(trace, known)))

    def test_the_like_tell_how_long_it_took_last_time(self) -> None:
        trace = Trace.from_arrays([0, 1, 2] * 4, 8, ops=["a", "b", "c"] * 4)
        column = features(trace)[:, FEATURES.index("log_like_last_gap")]
        assert np.isnan(column[:3]).all()
        np.testing.assert_allclose(column[3:], np.log2(3))

    def test_distances_to_the_next_use(self) -> None:
        trace = Trace.from_arrays([0, 1, 0], 8)
        assert next_distances(trace).tolist() == [2, np.inf, np.inf]


class TestLearned:
    @pytest.fixture(autouse=True)
    def _needs_lightgbm(self) -> None:
        pytest.importorskip("lightgbm", reason="the extra learned is not installed")

    def test_predicts_models_that_it_was_not_trained_on(self) -> None:
        trace = training("CNN")
        model = train_scorer([training("Transformer"), training("MLP"), training("MoE")], rounds=30)
        known = np.flatnonzero(trace.next_use != NEVER)
        truth = np.log2(trace.next_use[known] - known)
        guess = np.log2(learned_scores(trace, model)[known] - known)
        assert 1 - ((truth - guess) ** 2).sum() / ((truth - truth.mean()) ** 2).sum() > 0.3

    def test_training_twice_gives_the_same_model(self) -> None:
        once, twice = (train_scorer([training("MLP")], rounds=5) for _ in range(2))
        np.testing.assert_array_equal(
            learned_scores(training("CNN"), once), learned_scores(training("CNN"), twice)
        )

    def test_the_shipped_model_helps_an_optimizer_bound_step(self) -> None:
        trace = training("MLP", 6)
        capacity = peak(trace) * 3 // 4
        learned = simulate(trace, capacity, "learned", score=score(trace, "learned")).moved_bytes
        assert learned < simulate(trace, capacity, "lru").moved_bytes

    def test_the_shipped_model_is_small(self) -> None:
        assert len(shipped_model()) < 1 << 20

    def test_a_model_of_other_features_is_refused(self) -> None:
        import lightgbm

        data = lightgbm.Dataset(np.arange(200.0)[:, None], np.arange(200.0), feature_name=["height"])
        other = lightgbm.train({"verbosity": -1, "num_threads": 1}, data, num_boost_round=1).model_to_string()
        with pytest.raises(ValueError, match="height"):
            score(training(), "learned", model=other)

    def test_nothing_to_learn_from(self) -> None:
        with pytest.raises(ValueError, match="no buffer is used twice"):
            train_scorer([Trace.from_arrays([0, 1, 2], 8)])

    def test_an_empty_trace(self) -> None:
        assert score(Trace.from_arrays([], []), "learned").shape == (0,)


def test_without_lightgbm_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(BackendMissingError, match=r"accelera-engine\[learned\]"):
        train_scorer([training()])


class TestGate:
    @pytest.mark.parametrize("scorer", ["heuristic", "replay", "learned"])
    @pytest.mark.parametrize("share", [0.75, 0.5, 0.3])
    def test_never_more_than_1_percent_worse(self, scorer: str, share: float) -> None:
        pytest.importorskip("lightgbm", reason="the extra learned is not installed")
        synthetic = {model: training(model) for model in ("Transformer", "CNN", "MLP", "MoE")}
        for name, trace in {**synthetic, **captured()}.items():
            capacity = int(peak(trace) * share)
            choice = gated(trace, scorer, capacity)
            moved = simulate(trace, capacity, choice.policy, score=choice.score).moved_bytes
            best = min(simulate(trace, capacity, policy).moved_bytes for policy in PLAIN)
            assert moved <= 1.01 * best, name
            assert choice.accepted == (choice.scorer_bytes <= 1.01 * best)

    def test_a_harmful_scorer_is_kept_out_and_the_result_says_so(self) -> None:
        trace = training()
        backwards = -trace.next_use.astype(float)
        choice = gated(trace, backwards, peak(trace) // 2)
        assert not choice.accepted
        assert choice.policy == choice.best_plain
        assert choice.score is None
        assert f"so {choice.best_plain} is used" in choice.reason
        assert choice.to_dict()["accepted"] is False

    def test_a_helpful_one_is_let_in(self) -> None:
        trace = training()
        choice = gated(trace, trace.next_use.astype(float), peak(trace) // 2)
        assert choice.accepted
        assert choice.policy == "scored"
        assert "given is used" in choice.reason

    def test_a_prefix_is_enough_for_a_loop(self) -> None:
        trace = training()
        choice = gated(trace, "replay", peak(trace) // 2, prefix=0.7)
        assert choice.shadow_steps == round(0.7 * trace.step_count)
        if choice.score is not None:
            assert len(choice.score) == trace.access_count

    @settings(max_examples=20, deadline=None)
    @given(
        ids=st.lists(st.integers(0, 9), min_size=1, max_size=80),
        capacity=st.integers(1, 2000),
        data=st.data(),
    )
    def test_holds_for_any_scores(self, ids: list[int], capacity: int, data: st.DataObject) -> None:
        trace = Trace.from_arrays(ids, [10 << (each % 7) for each in ids])
        scores = np.array(data.draw(st.lists(st.floats(-1, 1), min_size=len(ids), max_size=len(ids))))
        choice = gated(trace, scores, capacity)
        moved = simulate(trace, capacity, choice.policy, score=choice.score).moved_bytes
        assert moved <= 1.01 * min(choice.plain_bytes.values())

    def test_bad_arguments(self) -> None:
        with pytest.raises(ValueError, match="prefix=0"):
            gated(training(), "replay", 1000, prefix=0)
        with pytest.raises(ValueError, match="plain"):
            gated(training(), "replay", 1000, plain=())


def tiny_mistral(folder: Path) -> Path:
    """Save a Mistral with random weights and a tokenizer of bytes, made on the spot."""
    transformers: Any = pytest.importorskip("transformers", reason="the extra llm is not installed")
    tokenizers: Any = pytest.importorskip("tokenizers", reason="the extra llm is not installed")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = {piece: index for index, piece in enumerate([*alphabet, "<s>", "</s>"])}
    bytewise = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=words, merges=[]))
    bytewise.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=bytewise, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    ends = {"bos_token_id": words["<s>"], "eos_token_id": words["</s>"]}
    config = transformers.MistralConfig(vocab_size=len(words), num_key_value_heads=2, **sizes, **ends)
    transformers.MistralForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_mistral(tmp_path_factory.mktemp("mistral"))


@pytest.fixture
def _forgotten() -> None:
    llm._rankings.clear()


@pytest.mark.usefixtures("_forgotten")
class TestLanguageModel:
    trace = Trace.from_arrays([0, 1, 2, 0, 3, 1], [8, 16, 4, 8, 1, 16], roles=["weight"] * 4)

    def test_a_local_model_ranks_the_tensors_once(
        self, mistral: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scores = score(self.trace, "llm", path=mistral, four_bit=False)
        assert sorted(set(scores)) == pytest.approx([0, 1 / 3, 2 / 3, 1])
        assert scores[0] == scores[3]
        monkeypatch.setattr(llm, "_asked", None)
        monkeypatch.setenv("ACCELERA_LLM_PATH", str(mistral))
        np.testing.assert_array_equal(score(self.trace, "llm", four_bit=False), scores)
        table = predict_eviction_scores(self.trace, "llm", four_bit=False)
        np.testing.assert_array_equal(table.eviction_score, scores)

    def test_in_four_bits(self, mistral: Path) -> None:
        pytest.importorskip("bitsandbytes", reason="the extra llm is not installed")
        _tokenizer, model = llm._loaded(str(mistral), True)
        assert model.is_loaded_in_4bit
        scores = score(self.trace, "llm", path=mistral)
        assert sorted(set(scores)) == pytest.approx([0, 1 / 3, 2 / 3, 1])

    def test_the_answer_passes_the_same_gate(self, mistral: Path) -> None:
        choice = gated(self.trace, "llm", 20, path=mistral, four_bit=False)
        assert choice.policy in ("scored", choice.best_plain)

    def test_time_is_up(self, mistral: Path) -> None:
        with pytest.raises(ScorerError, match="within 1e-06 s"):
            score(self.trace, "llm", path=mistral, four_bit=False, timeout=1e-6)

    def test_no_folder_and_no_weights(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("ACCELERA_LLM_PATH", raising=False)
        with pytest.raises(ScorerError, match="ACCELERA_LLM_PATH"):
            score(self.trace, "llm")
        with pytest.raises(ScorerError, match=r"config\.json"):
            score(self.trace, "llm", path=tmp_path)
        pytest.importorskip("transformers", reason="the extra llm is not installed")
        (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
        with pytest.raises(ScorerError, match="cannot be loaded"):
            score(self.trace, "llm", path=tmp_path, four_bit=False)

    @pytest.mark.parametrize("missing", ["transformers", "bitsandbytes"])
    def test_without_the_extra(self, missing: str, mistral: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        llm._loaded.cache_clear()
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(BackendMissingError, match=r"accelera-engine\[llm\]"):
            score(self.trace, "llm", path=mistral)

    def test_at_most_fifty_tensors_are_asked_about(self) -> None:
        trace = training()
        chosen = chosen_tensors(trace)
        assert len(chosen) == MOST_TENSORS < trace.buffer_count
        assert prompt_for(trace, chosen).count("\n") == MOST_TENSORS + 4

    @pytest.mark.parametrize(
        "answer", ["", "evict Q first", "[0, 1]", "[0, 1, 1]", "[0, 1, 2, 3]", "[0, 1,, 2]"]
    )
    def test_an_answer_that_is_no_ranking(self, answer: str) -> None:
        with pytest.raises(ScorerError, match="rank 3 tensors"):
            parsed_ranking(answer, 3)

    def test_an_answer_with_talk_around(self) -> None:
        assert parsed_ranking("Sure: [2, 0, 1]. Good luck!", 3) == [2, 0, 1]

    @given(st.permutations(list(range(12))))
    def test_the_grammar_takes_every_ranking(self, order: list[int]) -> None:
        state = Ranking(frozenset(map(str, range(12)))).then(str(order))
        assert state is not None
        assert state.complete

    @pytest.mark.parametrize(
        "text",
        ["0", "]", "[]", "[,", "[0,0", "[12", "[0, 1]", "[01", "[0  ", "[ 0", "[[", "[0]", "  [", " 0"],
    )
    def test_the_grammar_takes_nothing_else(self, text: str) -> None:
        assert Ranking(frozenset(map(str, range(12)))).then(text) is None

    def test_a_number_may_be_the_begin_of_another(self) -> None:
        state = Ranking(frozenset({"1", "10"}))
        assert state.then("[10,1]") is not None
        assert state.then("[1,1,") is None
