// Values that code of the user returns or stores, read with an error that names them.
#include "tensora/bindings/checked_cast.h"

namespace accelera::tensora {

namespace {

constexpr size_t most_characters = 60;

/// UTF-8 of a Python string; lone surrogates, which have none, are escaped.
std::string utf8_of(nb::handle text) {
    const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
    if (!bytes.is_valid()) throw nb::python_error();
    return {PyBytes_AsString(bytes.ptr()), size_t(PyBytes_Size(bytes.ptr()))};
}

// The stable ABI of Python 3.12 hides tp_name.
nb::str type_name_of(nb::handle object) { return nb::str(object.type().attr("__name__")); }

nb::object representation(nb::handle object) {
    nb::object text = nb::steal(PyObject_Repr(object.ptr()));
    if (text.is_valid()) return text;
    // A class may fail here; only errors that end the program are passed on.
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
    PyErr_Clear();
    return type_name_of(object);
}

}  // namespace

std::string printed(nb::handle object) {
    const nb::object text = representation(object);
    if (nb::len(text) <= most_characters) return utf8_of(text);
    const nb::object start = nb::steal(PyUnicode_Substring(text.ptr(), 0, most_characters));
    if (!start.is_valid()) throw nb::python_error();
    return utf8_of(start) + "...";
}

std::string printed_with_type(nb::handle object) {
    return printed(object) + " (" + utf8_of(type_name_of(object)) + ")";
}

void refuse_value(nb::handle value, const std::string& subject, const char* expected) {
    fail(Kind::type, subject, " ", printed_with_type(value), "; expected ", expected);
}

T checked_optional_tensor(nb::handle value, const std::string& subject) {
    if (value.is_none()) return T();
    return checked_cast<T>(value, subject, "a Tensor or None");
}

}  // namespace accelera::tensora
