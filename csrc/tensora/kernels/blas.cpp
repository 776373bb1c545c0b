// OpenBLAS, loaded while running, on the threads of the pool.
#include "tensora/kernels/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensora/base/interrupt.h"
#include "tensora/base/threads.h"

namespace accelera::tensora {

namespace {

using Job = void (*)(int thread, void* data, int argument);
using Callback = void (*)(int sync, Job job, int jobs, size_t size, void* data, int argument);
using Gemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const void* a,
                      int lda, const void* b, int ldb, float beta, void* c, int ldc);
using GemmDouble = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, double alpha,
                            const void* a, int lda, const void* b, int ldb, double beta, void* c, int ldc);
using GemmComplex = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, const void* alpha,
                             const void* a, int lda, const void* b, int ldb, const void* beta, void* c,
                             int ldc);

struct Library {
    void* handle = nullptr;
    Gemm sgemm = nullptr;
    GemmDouble dgemm = nullptr;
    GemmComplex cgemm = nullptr, zgemm = nullptr;
    void (*set_threads)(int) = nullptr;
} library;

template <typename Function>
void find(Function& function, const char* name) {
    void* found = dlsym(library.handle, (std::string("scipy_") + name).c_str());
    if (!found) found = dlsym(library.handle, name);
    if (!found) fail(Kind::runtime, "[tensora] the OpenBLAS that was loaded has no ", name);
    function = reinterpret_cast<Function>(found);
}

InterruptibleBlas* running = nullptr;  // of the thread that has the turn

std::atomic<int> calls{0};
thread_local constinit int own_calls = 0;
std::atomic<bool> ending{false};

/// Wait until no thread is inside the library, whose memory goes away next. Parallel sections do nothing
/// meanwhile, so calls end soon.
void end_calls() {
    ending = true;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (calls.load() && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// OpenBLAS's jobs may wait for one another, so all of them run at the same time.
void run_jobs(int, Job job, int jobs, size_t size, void* data, int argument) {
    struct Jobs {
        Job job;
        size_t size;
        char* data;
        int argument;
        void run(int i) const { job(i, data + size_t(i) * size, argument); }
    } all{job, size, static_cast<char*>(data), argument};
    if (!inside_pool() && (running ? running->is_given_up() : ending.load())) return;
    run_together(jobs, [](void* context, int i) { static_cast<Jobs*>(context)->run(i); }, &all);
}

// Leaked, and new in a forked process: its owner there may be a thread that the fork left behind.
std::atomic<std::recursive_mutex*> the_turn{nullptr};

std::recursive_mutex* turn_mutex() {
    static const bool registered = [] {
        the_turn.store(new std::recursive_mutex);
        pthread_atfork(nullptr, nullptr, [] { the_turn.store(new std::recursive_mutex); });
        return true;
    }();
    (void)registered;
    return the_turn.load();
}

constexpr int row_major = 101, no_trans = 111, trans = 112;

void gemm_panel(DType dtype, const MatrixView& a, const MatrixView& b, void* c, int ldc, bool add) {
    const InsideBlas inside;
    const int m = int(a.rows), n = int(b.columns), k = int(a.columns);
    const int trans_a = a.by_rows() ? no_trans : trans, trans_b = b.by_rows() ? no_trans : trans;
    const int lda = int(std::max<int64_t>(1, a.by_rows() ? a.row_step : a.column_step));
    const int ldb = int(std::max<int64_t>(1, b.by_rows() ? b.row_step : b.column_step));
    const C128 one = 1, beta = add;
    const C64 one_single = 1, beta_single = add;
    if (dtype == DType::f32)
        library.sgemm(row_major, trans_a, trans_b, m, n, k, 1, a.data, lda, b.data, ldb, add, c, ldc);
    else if (dtype == DType::f64)
        library.dgemm(row_major, trans_a, trans_b, m, n, k, 1, a.data, lda, b.data, ldb, add, c, ldc);
    else if (dtype == DType::c64)
        library.cgemm(row_major, trans_a, trans_b, m, n, k, &one_single, a.data, lda, b.data, ldb,
                      &beta_single, c, ldc);
    else
        library.zgemm(row_major, trans_a, trans_b, m, n, k, &one, a.data, lda, b.data, ldb, &beta, c, ldc);
}

/// Rows from `row` on and columns from `column` on of a product, of at most these extents.
struct Part {
    int64_t row, rows, column, columns;
};

void gemm_part(DType dtype, const MatrixView& a, const MatrixView& b, void* c, bool add, const Part& part) {
    const int64_t each = size_of(dtype);
    MatrixView left = a, right = b;
    left.rows = std::min(part.rows, a.rows - part.row);
    left.data = static_cast<const char*>(a.data) + part.row * a.row_step * each;
    right.columns = std::min(part.columns, b.columns - part.column);
    right.data = static_cast<const char*>(b.data) + part.column * b.column_step * each;
    if (left.rows <= 0 || right.columns <= 0) return;
    char* const to = static_cast<char*>(c) + (part.row * b.columns + part.column) * each;
    gemm_panel(dtype, left, right, to, int(b.columns), add);
}

/// How many parts a product has along its rows, when there is one for each thread: as square as can be.
int parts_of_rows(int threads, int64_t rows, int64_t columns) {
    int best = 1;
    double least = INFINITY;
    for (int parts = 1; parts <= threads; ++parts) {
        if (threads % parts) continue;
        const double read = double(rows) / parts + double(columns) * parts / threads;
        if (read < least) {
            least = read;
            best = parts;
        }
    }
    return best;
}

constexpr int64_t whole_tiles = 16;  // extents of parts are multiples of this

int64_t divided(int64_t extent, int parts) {
    return ((extent + parts - 1) / parts + whole_tiles - 1) / whole_tiles * whole_tiles;
}

/// A part for each thread of the pool. Nobody waits for another, as the library's own threads do: one that
/// has no processor for a moment holds up nobody.
void gemm_on_threads(DType dtype, const MatrixView& a, const MatrixView& b, void* c, bool add,
                     const Part& panel) {
    const int threads = thread_count();
    const int64_t rows = std::min(panel.rows, a.rows - panel.row);
    const int64_t columns = std::min(panel.columns, b.columns - panel.column);
    const int down = parts_of_rows(threads, rows, columns), across = threads / down;
    const int64_t height = divided(rows, down), width = divided(columns, across);
    parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t row = i / across * height, column = i % across * width;
            gemm_part(dtype, a, b, c, add,
                      {panel.row + row, std::min(height, rows - row), panel.column + column,
                       std::min(width, columns - column)});
        }
    });
}

/// A product whose rows are computed on any thread, in ranges.
struct Rows {
    DType dtype;
    const MatrixView &a, &b;
    char* c;
    const ProductRows& work;

    void begin(int64_t first, int64_t end) const {
        const int64_t row = b.columns * size_of(dtype);
        for (int64_t i = first; i < end; ++i) std::memcpy(c + i * row, work.bias, size_t(row));
    }
    void finish(int64_t first, int64_t end) const {
        if (work.done) (*work.done)(work.first + first, work.first + end);
    }
    void compute(int64_t first, int64_t end) const {
        if (work.bias) begin(first, end);
        gemm_part(dtype, a, b, c, work.bias, {first, end - first, 0, b.columns});
        finish(first, end);
    }
    void compute_panels(int64_t height) const {
        parallel_for((a.rows + height - 1) / height, 1, [&](int64_t first, int64_t end) {
            for (int64_t i = first; i < end; ++i) compute(i * height, std::min((i + 1) * height, a.rows));
        });
    }
    void compute_on_threads() const;
};

void Rows::compute_on_threads() const {
    if (work.bias)
        parallel_for(a.rows, std::max<int64_t>(1, grain / b.columns),
                     [&](int64_t first, int64_t end) { begin(first, end); });
    // Panels of at most some hundredths of a second, between which an interrupt is heard.
    constexpr double most_flops = 8e9;
    const double flops = 2.0 * double(a.columns);
    const int64_t columns = std::clamp<int64_t>(int64_t(most_flops / (flops * 256)), 256, b.columns + 256);
    const int64_t rows =
        std::max<int64_t>(256, int64_t(most_flops / (flops * double(std::min(columns, b.columns)))));
    for (int64_t row = 0; row < a.rows; row += rows)
        for (int64_t column = 0; column < b.columns; column += columns) {
            if (row + column) check_interrupt();
            gemm_on_threads(dtype, a, b, c, work.bias, {row, rows, column, columns});
        }
    finish(0, a.rows);
}

}  // namespace

void load_blas(const char* path) {
    library.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    // NOLINTNEXTLINE(concurrency-mt-unsafe): called once, while the module is imported
    if (!library.handle) fail(Kind::runtime, "[tensora] OpenBLAS cannot be loaded: ", dlerror());
    find(library.sgemm, "cblas_sgemm");
    find(library.dgemm, "cblas_dgemm");
    find(library.cgemm, "cblas_cgemm");
    find(library.zgemm, "cblas_zgemm");
    find(library.set_threads, "openblas_set_num_threads");
    void (*set_callback)(Callback) = nullptr;
    find(set_callback, "openblas_set_threads_callback_function");
    set_callback(run_jobs);
    library.set_threads(thread_count());
    std::atexit(end_calls);  // runs before the destructors of libraries
}

InsideBlas::InsideBlas() {
    ++calls;
    ++own_calls;
    if (ending) wait_for_exit();
}
InsideBlas::~InsideBlas() {
    --own_calls;
    --calls;
}
void InsideBlas::wait_for_exit() {
    calls -= own_calls;
    for (;;) pause();
}

void set_blas_threads() {
    const BlasTurn turn;
    if (library.handle) library.set_threads(thread_count());
}

BlasTurn::BlasTurn() : held_(nullptr) {
    if (inside_pool()) return;
    std::recursive_mutex* const mutex = turn_mutex();
    if (!mutex->try_lock()) {
        const InterpreterReleased released;  // whoever has the turn may need the interpreter to end it
        mutex->lock();
    }
    held_ = mutex;
}
BlasTurn::~BlasTurn() {
    if (held_) held_->unlock();
}

namespace {
BlasTurn* held_for_fork = nullptr;  // written by the thread that has the turn
}

void hold_blas() { held_for_fork = new BlasTurn; }
void release_blas() { delete std::exchange(held_for_fork, nullptr); }

BlasOnOneThread::BlasOnOneThread() { library.set_threads(1); }
BlasOnOneThread::~BlasOnOneThread() {
    if (!inside_pool()) library.set_threads(thread_count());
}

InterruptibleBlas::InterruptibleBlas(int64_t longest)
    : outer_(std::exchange(running, this)), may_end_(longest <= 10'000) {}
InterruptibleBlas::~InterruptibleBlas() { running = outer_; }

bool InterruptibleBlas::is_given_up() {
    if (!may_end_) return false;
    if (ending) given_up_ = true;
    const auto now = std::chrono::steady_clock::now();
    if (now - asked_ < std::chrono::milliseconds(20)) return given_up_;
    asked_ = now;
    given_up_ = given_up_ || is_interrupt_pending();
    if (given_up_ && matrix_) std::memset(matrix_, 0, size_t(nbytes_));
    return given_up_;
}

void InterruptibleBlas::clear_when_given_up(void* matrix, int64_t nbytes) {
    if (!running) return;  // one of many small matrices
    running->matrix_ = matrix;
    running->nbytes_ = nbytes;
}

void InterruptibleBlas::finish() {
    if (!given_up_) return;
    check_interrupt();
    fail(Kind::runtime, "[linalg] a call of LAPACK was given up after an interrupt that no handler raised");
}

void* blas_function(const char* name) {
    void* function = nullptr;
    find(function, name);
    return function;
}

int64_t panel_rows(DType dtype, int64_t rows, int64_t inner, int64_t columns) {
    constexpr int64_t most_inner = 64;          // measured, see docs/tensora_jit.md
    constexpr int64_t panel_bytes = 512 << 10;  // of a second-level cache
    constexpr int64_t least_rows = 128;         // for which packing the other matrix again costs little
    constexpr int64_t least_panels = 4;         // for each thread
    if (inner > most_inner || columns == 0) return 0;
    const int64_t height = panel_bytes / (columns * size_of(dtype)) / whole_tiles * whole_tiles;
    return height >= least_rows && rows >= least_panels * thread_count() * height ? height : 0;
}

void gemm(DType dtype, const MatrixView& a, const MatrixView& b, void* c, const ProductRows& work) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): called once, while the module is imported
    if (!library.handle) fail(Kind::runtime, "[tensora] no OpenBLAS; pip install scipy-openblas32");
    for (int64_t extent :
         {a.rows, a.columns, b.columns, a.row_step, a.column_step, b.row_step, b.column_step})
        require_shape(extent <= INT32_MAX, "[matmul] an extent or stride of ", extent,
                      "; OpenBLAS takes at most ", INT32_MAX);
    const double flops = 2.0 * double(a.columns) * double(a.rows) * double(b.columns);
    const BlasOnOneThread one_thread;
    const Rows rows{dtype, a, b, static_cast<char*>(c), work};
    if (inside_pool() || flops < 4e6) return rows.compute(0, a.rows);
    const InterpreterReleased released;
    const int64_t height = panel_rows(dtype, a.rows, a.columns, b.columns);
    height ? rows.compute_panels(height) : rows.compute_on_threads();
}

}  // namespace accelera::tensora
