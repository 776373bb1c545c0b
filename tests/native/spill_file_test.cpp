// Spill files and the thread that reads and writes them: contents come back, failures lose nothing.
#include "tensora/base/spill_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "native/random.h"
#include "tensora/base/base.h"

using namespace accelera::tensora;

namespace {

std::string scratch_folder() {
    const char* const folder = std::getenv("TMPDIR");
    return folder ? folder : "/tmp";
}

std::vector<char> bytes_of(RandomNumbers& random, int64_t nbytes) {
    std::vector<char> bytes(static_cast<size_t>(nbytes));
    for (char& byte : bytes) byte = char(random.next());
    return bytes;
}

/// While it lives, files of this process may not grow beyond a size.
class FileSizeLimit {
  public:
    explicit FileSizeLimit(rlim_t nbytes) {
        handler_ = signal(SIGXFSZ, SIG_IGN);
        getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit limit{nbytes, before_.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~FileSizeLimit() {
        setrlimit(RLIMIT_FSIZE, &before_);
        signal(SIGXFSZ, handler_);
    }

  private:
    rlimit before_;
    void (*handler_)(int);
};

}  // namespace

TEST_CASE("spill file: contents come back, in any order, synchronously or in the background") {
    for (uint64_t seed = 0; seed < 6; ++seed) {
        CAPTURE(seed);
        RandomNumbers random(seed);
        SpillFile file(scratch_folder());
        std::map<int64_t, std::vector<char>> slots;
        int64_t written = 0;
        for (int step = 0; step < 200; ++step) {
            if (slots.size() < 8 && random.chance(2)) {
                std::vector<char> bytes = bytes_of(random, random.between(1, 30'000));
                const auto nbytes = int64_t(bytes.size());
                written += nbytes;
                if (random.chance(2)) {
                    const int64_t slot = file.write(bytes.data(), nbytes);
                    slots[slot] = std::move(bytes);
                } else {
                    const int64_t slot = file.begin_write(bytes.data(), nbytes);
                    file.finish(slot);
                    slots[slot] = std::move(bytes);
                }
            } else if (!slots.empty()) {
                const auto at = std::next(slots.begin(), long(random.between(0, int64_t(slots.size()) - 1)));
                if (random.chance(6)) {
                    file.forget(at->first);
                } else {
                    std::vector<char> bytes(at->second.size());
                    if (random.chance(2)) {
                        file.read(at->first, bytes.data(), int64_t(bytes.size()));
                    } else {
                        file.begin_read(at->first, bytes.data(), int64_t(bytes.size()));
                        file.finish(at->first);
                    }
                    REQUIRE(bytes == at->second);
                }
                slots.erase(at);
            }
        }
        CHECK(file.written_bytes() == written);
    }
}

TEST_CASE("spill file: many concurrent writes") {
    RandomNumbers random(3);
    SpillFile file(scratch_folder());
    std::vector<std::vector<char>> contents;
    std::vector<int64_t> slots;
    for (int i = 0; i < 20; ++i) {
        contents.push_back(bytes_of(random, 50'000));
        slots.push_back(file.begin_write(contents.back().data(), 50'000));
    }
    file.abandon(slots[7]);
    for (size_t i = 0; i < slots.size(); ++i)
        if (i != 7) file.finish(slots[i]);
    std::vector<std::vector<char>> read(contents.size(), std::vector<char>(50'000));
    for (size_t i = 0; i < slots.size(); ++i)
        if (i != 7) file.begin_read(slots[i], read[i].data(), 50'000);
    for (size_t i = slots.size(); i-- > 0;)
        if (i != 7) {
            file.finish(slots[i]);
            CHECK(read[i] == contents[i]);
        }
}

TEST_CASE("spill file: a write without disk space loses no other contents") {
    RandomNumbers random(4);
    SpillFile file(scratch_folder());
    const std::vector<char> first = bytes_of(random, 10'000), second = bytes_of(random, 100'000);
    const int64_t slot = file.write(first.data(), 10'000);
    {
        const FileSizeLimit limit(20'000);
        CHECK_THROWS_AS(file.write(second.data(), 100'000), Error);
        const int64_t begun = file.begin_write(second.data(), 100'000);
        CHECK_THROWS_AS(file.finish(begun), Error);
    }
    CHECK(file.written_bytes() == 10'000);
    const int64_t later = file.write(second.data(), 100'000);
    std::vector<char> read(100'000);
    file.read(later, read.data(), 100'000);
    CHECK(read == second);
    read.resize(10'000);
    file.read(slot, read.data(), 10'000);
    CHECK(read == first);
}

TEST_CASE("spill file: a folder that does not exist is named") {
    SpillFile file("/no/such/folder");
    const char byte = 1;
    CHECK_THROWS_WITH_AS(file.write(&byte, 1), doctest::Contains("/no/such/folder"), Error);
}

TEST_CASE("spill file: a forked child leaves the parent's contents alone") {
    SpillFile file(scratch_folder());
    const std::vector<char> bytes(1000, 'a');
    const int64_t slot = file.write(bytes.data(), 1000);
    const pid_t child = fork();
    if (child == 0) {
        const std::vector<char> other(1000, 'b');
        int refused = 0;
        try {
            file.write(other.data(), 1000);
        } catch (const Error&) {
            refused = 1;
        }
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
    std::vector<char> read(1000);
    file.read(slot, read.data(), 1000);
    CHECK(read == bytes);
}

TEST_CASE("I/O thread: a job of a file that ends too early fails with EIO") {
    char name[] = "/tmp/accelera-test-XXXXXX";
    const int file = mkstemp(name);
    REQUIRE(file >= 0);
    unlink(name);
    REQUIRE(write(file, "abc", 3) == 3);
    std::vector<char> read(10);
    IoThread thread;
    FileJob job;
    job.file = file;
    job.data = read.data();
    job.nbytes = 10;
    thread.begin(job);
    thread.wait(job);
    CHECK(job.error == EIO);
    FileJob other;
    other.file = file;
    other.data = read.data();
    other.nbytes = 3;
    thread.wait(other);  // was never begun
    CHECK(other.error == 0);
    CHECK(std::memcmp(read.data(), "abc", 3) == 0);
    close(file);
}
