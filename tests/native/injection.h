#pragma once

/// While it lives, the N-th `operator new` of this thread throws std::bad_alloc.
class FailingNew {
  public:
    explicit FailingNew(long number);
    ~FailingNew();
    /// Whether it was reached.
    bool has_failed() const;
};
