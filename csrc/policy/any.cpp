#include "policy/any.h"

#include "policy/registry.h"

namespace accelera::policy {
namespace {

template <class P>
class Behind final : public AnyPolicy {
  public:
    explicit Behind(const Knowledge& known) : policy_(known) {}

    void miss(Id id, int64_t nbytes, Time time, bool write) override {
        policy_.miss(id, nbytes, time, write);
    }
    void insert(Id id, int64_t nbytes, Time time, bool write) override {
        policy_.insert(id, nbytes, time, write);
    }
    void touch(Id id, Time time, bool write) override { policy_.touch(id, time, write); }
    void evict(Id id) override { policy_.evict(id); }
    void remove(Id id) override { policy_.remove(id); }
    Id victim(const Evictable& evictable) override { return policy_.victim(evictable); }
    bool dead(Id id) const override { return policy_.dead(id); }

  private:
    P policy_;
};

}  // namespace

std::unique_ptr<AnyPolicy> make_policy(const std::string& name, const Knowledge& known) {
// NOLINTBEGIN(bugprone-macro-parentheses): a type cannot be in parentheses
#define MAKE(label, Type) \
    if (name == #label) return std::make_unique<Behind<Type>>(known);
    ACCELERA_POLICIES(MAKE)
#undef MAKE
    // NOLINTEND(bugprone-macro-parentheses)
    return nullptr;
}

std::map<std::string, unsigned> policy_needs() {
#define NEEDS(label, Type) {#label, Type::needs},
    return {ACCELERA_POLICIES(NEEDS)};
#undef NEEDS
}

}  // namespace accelera::policy
