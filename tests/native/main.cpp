// Runner of the C++ tests, what the library needs of nanobind once in a program, and allocations that fail.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdlib>
#include <nanobind/intrusive/counter.inl>
#include <new>

#include "doctest/doctest.h"
#include "native/injection.h"
#include "tensora/kernels/blas.h"

namespace {
thread_local long remaining = 0;  // allocations until the one that fails; 0: none does
thread_local bool failed = false;
}  // namespace

FailingNew::FailingNew(long number) {
    failed = false;
    remaining = number;
}
FailingNew::~FailingNew() { remaining = 0; }
bool FailingNew::has_failed() const { return failed; }

void* operator new(size_t nbytes) {
    if (remaining > 0 && --remaining == 0) {
        failed = true;
        throw std::bad_alloc();
    }
    if (void* const memory = std::malloc(nbytes ? nbytes : 1)) return memory;
    throw std::bad_alloc();
}
void* operator new(size_t nbytes, const std::nothrow_t&) noexcept { return std::malloc(nbytes ? nbytes : 1); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

int main(int count, char** arguments) {
    accelera::tensora::load_blas(ACCELERA_TEST_BLAS);
    return doctest::Context(count, arguments).run();
}
