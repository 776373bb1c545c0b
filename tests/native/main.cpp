// Runner of the C++ tests, and what the library needs of nanobind once in a program.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <nanobind/intrusive/counter.inl>

#include "doctest/doctest.h"
