#pragma once

// The policies by name: a new one is one file and one line here.
#include "policy/belady.h"
#include "policy/fifo.h"
#include "policy/lru.h"
#include "policy/scored.h"

#define ACCELERA_POLICIES(X) \
    X(belady, Belady)        \
    X(fifo, Fifo)            \
    X(lru, Lru)              \
    X(scored, Scored)
