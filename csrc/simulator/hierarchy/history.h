#pragma once

#include <algorithm>
#include <vector>

#include "simulator/hierarchy/prepared_trace.h"

namespace accelera::simulator {

/// When everything of a replay happened, column by column; filled only where somebody asked for it.
struct History {
    struct Steps {
        std::vector<int32_t> step;
        std::vector<double> begin_s;
        std::vector<double> end_s;
    };

    struct Moves {
        std::vector<int32_t> link;
        std::vector<uint8_t> away;
        std::vector<Id> buffer;
        /// The step being admitted, for which it was moved.
        std::vector<int32_t> step;
        std::vector<int64_t> bytes;
        std::vector<double> begin_s;
        std::vector<double> end_s;
    };

    /// Bytes in the first tier from a time on.
    struct Residency {
        std::vector<double> since_s{0.0};
        std::vector<int64_t> bytes{0};
    };

    void compute(double begin_s, double end_s) {
        steps.step.push_back(admitted);
        steps.begin_s.push_back(begin_s);
        steps.end_s.push_back(end_s);
    }

    void move(size_t link, bool away, Id id, int64_t nbytes, double begin_s, double end_s) {
        moves.link.push_back(static_cast<int32_t>(link));
        moves.away.push_back(away);
        moves.buffer.push_back(id);
        moves.step.push_back(admitted);
        moves.bytes.push_back(nbytes);
        moves.begin_s.push_back(begin_s);
        moves.end_s.push_back(end_s);
    }

    /// The first tier holds `nbytes` from `since_s` on, or from the last change where that is later: changes
    /// stay in the order in which they were decided.
    void hold(int64_t nbytes, double since_s) {
        residency.since_s.push_back(std::max(since_s, residency.since_s.back()));
        residency.bytes.push_back(nbytes);
    }

    Steps steps;
    Moves moves;
    Residency residency;
    /// The step being admitted, or admitted last; -1: none yet.
    int32_t admitted = -1;
};

}  // namespace accelera::simulator
