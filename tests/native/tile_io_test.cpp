// Regions of files, copies of strided memory, products of integers and of sparse matrices, against loops.
#include "cpu/tile_io.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "cpu/igemm.h"
#include "cpu/spmm.h"
#include "cpu/strided_copy.h"
#include "cpu/transfer_queue.h"
#include "doctest/doctest.h"
#include "native/random.h"

using namespace accelera;

namespace {

/// A file without a name that holds these bytes.
class File {
  public:
    explicit File(const std::vector<char>& bytes, bool direct = false) {
        char name[] = "/tmp/accelera-test-XXXXXX";
        file = mkstemp(name);
        REQUIRE(file >= 0);
        REQUIRE(pwrite(file, bytes.data(), bytes.size(), 0) == ssize_t(bytes.size()));
        if (direct) direct_file = open(name, O_RDWR | O_DIRECT);
        unlink(name);
    }
    ~File() {
        close(file);
        if (direct_file >= 0) close(direct_file);
    }
    std::vector<char> contents(size_t nbytes) const {
        std::vector<char> bytes(nbytes);
        REQUIRE(pread(file, bytes.data(), nbytes, 0) == ssize_t(nbytes));
        return bytes;
    }
    int file = -1, direct_file = -1;
};

/// A part of an array of rank `axes` in a file of `total` elements, and dense memory in any order of axes.
struct Part {
    Part(RandomNumbers& random, int rank, int64_t itemsize) : itemsize(itemsize) {
        std::vector<int64_t> shape(static_cast<size_t>(rank));
        for (int64_t& extent : shape) extent = random.between(1, 40);
        int64_t stride = itemsize;
        std::vector<int64_t> strides(shape.size());
        for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
        total_bytes = stride;
        int64_t memory = itemsize;
        for (size_t i = 0; i < shape.size(); ++i) {
            const int64_t begin = random.between(0, shape[i] - 1),
                          count = random.between(1, shape[i] - begin);
            const bool reversed = random.chance(4);
            offset += (reversed ? begin + count - 1 : begin) * strides[i];
            axes.push_back({count, reversed ? -strides[i] : strides[i], memory});
            memory *= count;
        }
        memory_bytes = memory;
    }
    template <class Visit>
    void each(Visit visit) const {
        std::vector<int64_t> index(axes.size(), 0);
        for (;;) {
            int64_t in_file = offset, in_memory = 0;
            for (size_t i = 0; i < axes.size(); ++i) {
                in_file += index[i] * axes[i].file_stride;
                in_memory += index[i] * axes[i].memory_stride;
            }
            visit(in_file, in_memory);
            size_t i = 0;
            while (i < axes.size() && ++index[i] == axes[i].count) index[i++] = 0;
            if (i == axes.size()) return;
        }
    }
    io::Region region(const File& file, char* memory, bool prefer_cached) const {
        return {file.file, file.direct_file, offset, memory, itemsize, axes, prefer_cached};
    }
    int64_t itemsize, offset = 0, total_bytes = 0, memory_bytes = 0;
    std::vector<io::Axis> axes;
};

/// Both backends, one after the other; automatic again at the end.
class EachBackend {
  public:
    ~EachBackend() { io::set_backend(io::Backend::automatic); }
    template <class Test>
    void operator()(Test test) const {
        for (const io::Backend backend : {io::Backend::kernel, io::Backend::threads}) {
            CAPTURE(int(backend));
            io::set_backend(backend);
            test();
        }
    }
};

std::vector<char> random_bytes(RandomNumbers& random, int64_t n) {
    std::vector<char> bytes(static_cast<size_t>(n));
    for (char& byte : bytes) byte = char(random.next());
    return bytes;
}

}  // namespace

TEST_CASE("regions of files: reads and writes move exactly their elements") {
    const EachBackend each_backend;
    each_backend([] {
        for (uint64_t seed = 0; seed < 60; ++seed) {
            CAPTURE(seed);
            RandomNumbers random(seed);
            const int64_t itemsizes[] = {1, 2, 4, 8, 16, 3};
            const Part part(random, int(random.between(1, 3)), itemsizes[random.between(0, 5)]);
            const std::vector<char> before = random_bytes(random, part.total_bytes);
            const File file(before, seed % 3 == 0);
            std::vector<char> memory(static_cast<size_t>(part.memory_bytes));
            const io::Outcome read = io::read_region(part.region(file, memory.data(), seed % 2));
            REQUIRE(read.done);
            part.each([&](int64_t in_file, int64_t in_memory) {
                REQUIRE(std::memcmp(&memory[size_t(in_memory)], &before[size_t(in_file)],
                                    size_t(part.itemsize)) == 0);
            });
            const std::vector<char> fresh = random_bytes(random, part.memory_bytes);
            memory = fresh;
            REQUIRE(io::write_region(part.region(file, memory.data(), false)).done);
            std::vector<char> expected = before;
            part.each([&](int64_t in_file, int64_t in_memory) {
                std::memcpy(&expected[size_t(in_file)], &fresh[size_t(in_memory)], size_t(part.itemsize));
            });
            REQUIRE(file.contents(size_t(part.total_bytes)) == expected);
        }
    });
}

TEST_CASE("regions of files: large ones, around the page cache too") {
    const EachBackend each_backend;
    each_backend([] {
        for (const bool direct : {false, true}) {
            CAPTURE(direct);
            RandomNumbers random(5);
            const int64_t rows = 700, columns = 1100;
            const std::vector<char> bytes = random_bytes(random, rows * columns * 8);
            const File file(bytes, direct);
            std::vector<char> memory(size_t(500 * 900 * 8));
            const io::Region region{file.file,
                                    file.direct_file,
                                    (100 * columns + 50) * 8,
                                    memory.data(),
                                    8,
                                    {{500, columns * 8, 900 * 8}, {900, 8, 8}},
                                    false};
            REQUIRE(io::read_region(region).done);
            for (int64_t i = 0; i < 500; ++i)
                REQUIRE(std::memcmp(&memory[size_t(i * 900 * 8)],
                                    &bytes[size_t(((100 + i) * columns + 50) * 8)], 900 * 8) == 0);
            for (char& byte : memory) byte = char(~byte);
            REQUIRE(io::write_region(region).done);
            const std::vector<char> after = file.contents(bytes.size());
            for (int64_t i = 0; i < rows * columns * 8; ++i) {
                const int64_t row = i / 8 / columns, column = i / 8 % columns;
                const bool inside = row >= 100 && row < 600 && column >= 50 && column < 950;
                REQUIRE(after[size_t(i)] == (inside ? char(~bytes[size_t(i)]) : bytes[size_t(i)]));
            }
        }
    });
}

TEST_CASE("queues of transfers: many at once, refused ones, and a forked child") {
    const std::vector<char> bytes(1 << 20, 'x');
    const File file(bytes);
    for (io::TransferQueue* (*queue_of)() : {io::kernel_queue, io::thread_queue}) {
        io::TransferQueue* queue = queue_of();
        if (queue == nullptr) continue;  // the kernel offers none here
        std::vector<char> memory(bytes.size());
        const auto moved = [&](int descriptor) {
            const int64_t part = int64_t(bytes.size()) / io::TransferQueue::depth;
            int begun = 0;
            for (int i = 0; i < io::TransferQueue::depth; ++i)
                begun += queue_of()->submit(
                    {false, descriptor, &memory[size_t(i * part)], part, i * part, nullptr});
            int64_t total = 0;
            while (begun > 0) {
                io::Finished finished[io::TransferQueue::depth];
                const int count = queue_of()->wait(finished);
                for (int i = 0; i < count; ++i) total += finished[i].moved;
                begun -= count;
            }
            return total;
        };
        CHECK(moved(file.file) == int64_t(bytes.size()));
        CHECK(memory == bytes);
        CHECK(moved(-1) <= 0);
        const pid_t child = fork();
        if (child == 0) _exit(moved(file.file) == int64_t(bytes.size()) ? 0 : 1);
        int status = 1;
        REQUIRE(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 0);
    }
}

TEST_CASE("regions of files: what stops a transfer is reported with its position") {
    const std::vector<char> bytes(100, 'x');
    const File file(bytes);
    std::vector<char> memory(200);
    const io::Outcome ended = io::read_region({file.file, -1, 50, memory.data(), 1, {{200, 1, 1}}, false});
    CHECK(!ended.done);
    CHECK(ended.error == 0);
    const io::Outcome refused = io::read_region({-1, -1, 0, memory.data(), 1, {{10, 1, 1}}, false});
    CHECK(!refused.done);
    CHECK(refused.error == EBADF);
    const io::Outcome unwritten = io::write_region({-1, -1, 0, memory.data(), 1, {{10, 1, 1}}, false});
    CHECK(!unwritten.done);
}

TEST_CASE("strided copies: any strides and sizes of elements") {
    for (uint64_t seed = 0; seed < 60; ++seed) {
        CAPTURE(seed);
        RandomNumbers random(seed);
        const int64_t itemsizes[] = {1, 2, 4, 8, 16, 3};
        const int64_t itemsize = itemsizes[random.between(0, 5)];
        const auto rank = size_t(random.between(0, 3));
        std::vector<io::CopyAxis> axes(rank);
        int64_t target = itemsize, source = itemsize;
        for (size_t i = 0; i < rank; ++i) {
            axes[i].count = random.between(0, 20) ? random.between(1, 20) : 0;
            axes[i].target_stride = target;
            target *= std::max<int64_t>(1, axes[i].count);
        }
        for (size_t i = rank; i-- > 0;) {
            axes[i].source_stride = random.chance(5) ? 0 : source;
            source *= std::max<int64_t>(1, axes[i].count);
        }
        const std::vector<char> from = random_bytes(random, source);
        std::vector<char> to(static_cast<size_t>(target), 0), expected = to;
        int64_t elements = 1;
        for (const io::CopyAxis& axis : axes) elements *= axis.count;
        for (int64_t number = 0; number < elements; ++number) {
            int64_t remainder = number, in_target = 0, in_source = 0;
            for (const io::CopyAxis& axis : axes) {
                in_target += remainder % axis.count * axis.target_stride;
                in_source += remainder % axis.count * axis.source_stride;
                remainder /= axis.count;
            }
            std::memcpy(&expected[size_t(in_target)], &from[size_t(in_source)], size_t(itemsize));
        }
        io::strided_copy(to.data(), from.data(), axes, itemsize);
        REQUIRE(to == expected);
    }
}

namespace {

template <typename E>
void check_igemm(RandomNumbers& random) {
    const int64_t m = random.between(0, 90), n = random.between(0, 90), k = random.between(0, 90);
    std::vector<E> a(size_t(m * k)), b(size_t(k * n)), c(size_t(m * n));
    for (auto* matrix : {&a, &b, &c})
        for (E& one : *matrix) one = E(random.next());
    const bool accumulate = random.chance(2), by_columns = random.chance(2);
    std::vector<E> expected(size_t(m * n));
    const auto at_a = [&](int64_t i, int64_t j) { return by_columns ? j * m + i : i * k + j; };
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            E sum = accumulate ? c[size_t(i * n + j)] : E(0);
            for (int64_t p = 0; p < k; ++p)
                sum = E(sum + E(uint64_t(a[size_t(at_a(i, p))]) * b[size_t(p * n + j)]));
            expected[size_t(i * n + j)] = sum;
        }
    const MatrixView left_factor{a.data(), m, k, by_columns ? 1 : k, by_columns ? m : 1};
    cpu::igemm(left_factor, {b.data(), k, n, n, 1}, {c.data(), m, n, n, 1}, sizeof(E), accumulate,
               int(random.between(1, 3)));
    REQUIRE(c == expected);
}

template <typename Index>
void check_spmm(RandomNumbers& random, bool by_rows) {
    const int64_t rows = random.between(1, 40), columns = random.between(1, 40), n = random.between(1, 20);
    std::vector<double> dense(size_t(rows * columns), 0.0);
    const int64_t major = by_rows ? rows : columns, minor = by_rows ? columns : rows;
    std::vector<Index> pointers{0}, indices;
    std::vector<double> values;
    for (int64_t i = 0; i < major; ++i) {
        for (int64_t j = 0; j < minor; ++j)
            if (random.chance(4)) {
                indices.push_back(Index(j));
                values.push_back(double(random.between(-9, 9)));
                dense[size_t(by_rows ? i * columns + j : j * columns + i)] = values.back();
            }
        pointers.push_back(Index(indices.size()));
    }
    const int64_t row_begin = random.between(0, rows - 1), row_end = random.between(row_begin, rows);
    const int64_t col_begin = random.between(0, columns - 1), col_end = random.between(col_begin, columns);
    std::vector<double> b(size_t((col_end - col_begin) * n)), c(size_t((row_end - row_begin) * n), 7.0);
    for (double& one : b) one = double(random.between(-9, 9));
    std::vector<double> expected(c.size());
    for (int64_t i = row_begin; i < row_end; ++i)
        for (int64_t j = 0; j < n; ++j)
            for (int64_t p = col_begin; p < col_end; ++p)
                expected[size_t((i - row_begin) * n + j)] +=
                    dense[size_t(i * columns + p)] * b[size_t((p - col_begin) * n + j)];
    const cpu::SparseBlock block{pointers.data(), indices.data(), values.data(), sizeof(Index) == 8,
                                 by_rows,         true,           row_begin,     row_end,
                                 col_begin,       col_end};
    cpu::spmm(block, {b.data(), col_end - col_begin, n, n, 1}, {c.data(), row_end - row_begin, n, n, 1},
              cpu::SparseItem::f64, false, int(random.between(1, 3)));
    REQUIRE(c == expected);
}

}  // namespace

TEST_CASE("integer products wrap around as NumPy's do") {
    for (uint64_t seed = 0; seed < 25; ++seed) {
        CAPTURE(seed);
        RandomNumbers random(seed);
        check_igemm<uint8_t>(random);
        check_igemm<uint16_t>(random);
        check_igemm<uint32_t>(random);
        check_igemm<uint64_t>(random);
    }
    CHECK(cpu::igemm_workspace_bytes(4, 2) > 0);
}

TEST_CASE("sparse products: any block of a matrix compressed by rows or columns") {
    for (uint64_t seed = 0; seed < 40; ++seed) {
        CAPTURE(seed);
        RandomNumbers random(seed);
        check_spmm<int32_t>(random, true);
        check_spmm<int64_t>(random, true);
        check_spmm<int32_t>(random, false);
        check_spmm<int64_t>(random, false);
    }
}
