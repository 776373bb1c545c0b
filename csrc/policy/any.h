#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "policy/contract.h"

namespace accelera::policy {

using Evictable = std::function<bool(Id)>;

/// A policy behind virtual calls, for those who do not know which one they use.
class AnyPolicy {
  public:
    virtual ~AnyPolicy() = default;
    static constexpr bool crowded() { return false; }
    static void expect(Id, Time) {}
    virtual void miss(Id id, int64_t nbytes, Time time, bool write) = 0;
    virtual void insert(Id id, int64_t nbytes, Time time, bool write) = 0;
    virtual void touch(Id id, Time time, bool write) = 0;
    virtual void evict(Id id) = 0;
    virtual void remove(Id id) = 0;
    virtual Id victim(const Evictable& evictable) = 0;
    virtual bool dead(Id id) const = 0;
};

/// A new policy by its name in registry.h; null when no policy has it.
std::unique_ptr<AnyPolicy> make_policy(const std::string& name, const Knowledge& known);

/// Per name, what of Knowledge that policy needs: a sum of Knowledge::Need.
std::map<std::string, unsigned> policy_needs();

}  // namespace accelera::policy
