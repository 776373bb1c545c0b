#pragma once

#include <cstring>
#include <deque>
#include <string>
#include <unordered_map>

#include "tensora/core/op.h"
#include "tensora/core/tensor.h"

namespace accelera::tensora {

/// Parameters and layouts of recorded operations, each stored once: they take hundreds of bytes, and a
/// recurrent network repeats the same ones for every step of a sequence.
class OperationForms {
  public:
    int32_t number_of(const Params& params) { return number(params, params_, params_numbers_); }
    int32_t number_of(const Layout& layout) { return number(layout, layouts_, layout_numbers_); }
    const Params& params(int32_t number) const { return params_[size_t(number)]; }
    const Layout& layout(int32_t number) const { return layouts_[size_t(number)]; }
    void clear() {
        params_.clear();
        layouts_.clear();
        params_numbers_.clear();
        layout_numbers_.clear();
    }

  private:
    using Numbers = std::unordered_map<std::string, int32_t>;

    template <typename Value>
    static void append(std::string& key, const Value& value) {
        key.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    static void append(std::string& key, const Dims& dims) {
        append(key, int64_t(dims.size()));
        for (const int64_t value : dims) append(key, value);
    }
    static std::string key_of(const Params& params) {
        std::string key;
        append(key, params.a);
        append(key, params.b);
        append(key, params.c);
        append(key, params.x);
        append(key, params.y);
        append(key, params.dtype);
        append(key, params.flag);
        append(key, params.mode);
        return key;
    }
    static std::string key_of(const Layout& layout) {
        std::string key;
        append(key, layout.shape);
        append(key, layout.strides);
        append(key, layout.offset);
        return key;
    }
    template <typename Form>
    static int32_t number(const Form& form, std::deque<Form>& forms, Numbers& numbers) {
        const auto [entry, is_new] = numbers.try_emplace(key_of(form), int32_t(forms.size()));
        if (is_new) forms.push_back(form);
        return entry->second;
    }

    std::deque<Params> params_;
    std::deque<Layout> layouts_;
    Numbers params_numbers_, layout_numbers_;
};

}  // namespace accelera::tensora
