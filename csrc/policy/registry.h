#pragma once

// The policies by name: a new one is one file and one line here.
#include "policy/arc.h"
#include "policy/belady.h"
#include "policy/belady_size.h"
#include "policy/clock.h"
#include "policy/fifo.h"
#include "policy/gdsf.h"
#include "policy/largest.h"
#include "policy/lfu.h"
#include "policy/lirs.h"
#include "policy/loop.h"
#include "policy/lru.h"
#include "policy/mru.h"
#include "policy/planner.h"
#include "policy/random.h"
#include "policy/s3fifo.h"
#include "policy/scored.h"
#include "policy/sieve.h"
#include "policy/slru.h"
#include "policy/two_q.h"
#include "policy/wtinylfu.h"

#define ACCELERA_POLICIES(X)   \
    X(arc, Arc)                \
    X(belady, Belady)          \
    X(belady_size, BeladySize) \
    X(clock, Clock)            \
    X(fifo, Fifo)              \
    X(gdsf, Gdsf)              \
    X(largest, Largest)        \
    X(lfu, Lfu)                \
    X(lirs, Lirs)              \
    X(loop, Loop)              \
    X(lru, Lru)                \
    X(mru, Mru)                \
    X(planner, Planner)        \
    X(random, Random)          \
    X(s3fifo, S3Fifo)          \
    X(scored, Scored)          \
    X(sieve, Sieve)            \
    X(slru, Slru)              \
    X(two_q, TwoQ)             \
    X(wtinylfu, WTinyLfu)
