#pragma once

// Compile a function once per instruction set and let the loader take the best one for the machine.
#if !defined(ACCELERA_SANITIZED) && defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && \
    !defined(__clang__)
#define ACCELERA_MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ACCELERA_MULTIVERSION
#endif

#define ACCELERA_INLINE inline __attribute__((always_inline))
