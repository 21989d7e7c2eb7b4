// Form: how the bytes of a piece are written in the pool.
//
// The one table of forms. Settings, amemctl, the session protocol, the record and the views take
// their names and numbers from here; broker.proto and amem.h declare the same numbers for programs.
// A new form is a row here, its number there, and an implementation in shim/phases that writes and
// reads it. Plain values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace amem {

enum class Form : std::uint8_t {
  kAuto = 1,    // of a wish only: a look at the bytes decides
  kDense = 2,   // byte for byte
  kSparse = 3,  // an index, and the blocks that are not zero; as a wish: wherever that is shorter
#ifdef AMEM_TEST_SEAMS
  kXor = 100,  // each byte changed: shows that nothing but a form's own copier looks at the bytes
#endif
};

struct FormRule {
  Form form;
  std::string_view name;  // of settings and messages
  bool stored;            // bytes can lie in the pool in this form
  bool shorter;  // a piece takes fewer bytes of the pool than it has; how many, the rank says
  bool encoded;  // the bytes are not those of the memory
  bool offered;  // to people; and kAuto may choose it
};

inline constexpr std::array kForms = {
    FormRule{Form::kAuto, "auto", false, false, false, true},
    FormRule{Form::kDense, "dense", true, false, false, true},
    FormRule{Form::kSparse, "sparse", true, true, true, true},
#ifdef AMEM_TEST_SEAMS
    FormRule{Form::kXor, "xor", true, false, true, false},
#endif
};

constexpr const FormRule& rule(Form form) {
  for (const FormRule& each : kForms)
    if (each.form == form) return each;
  return kForms.front();  // no other value exists: form_of() and form_named() make none
}

constexpr std::string_view to_string(Form form) { return rule(form).name; }

/// As on the wire, in the record and in the API.
constexpr std::uint32_t number_of(Form form) { return static_cast<std::uint32_t>(form); }

/// Whether a piece may be saved in this form when that is wished. What is wished to be shorter may
/// turn out not to be.
constexpr bool allows(Form wish, Form form) {
  if (!rule(form).stored) return false;
  return wish == form || form == Form::kDense || (!rule(wish).stored && rule(form).offered);
}

/// By its number, as on the wire and in the record. Nothing: there is none of that number.
constexpr std::optional<Form> form_of(std::uint32_t number) {
  for (const FormRule& each : kForms)
    if (number_of(each.form) == number) return each.form;
  return std::nullopt;
}

/// Of a piece that lies in the pool. Nothing: bytes cannot lie there so.
constexpr std::optional<Form> stored_form_of(std::uint32_t number) {
  const std::optional<Form> form = form_of(number);
  return form && rule(*form).stored ? form : std::nullopt;
}

constexpr std::optional<Form> form_named(std::string_view name) {
  for (const FormRule& each : kForms)
    if (each.name == name) return each.form;
  return std::nullopt;
}

/// For people: "auto, dense or sparse".
inline std::string names_of_forms() {
  std::string text;
  for (const FormRule& each : kForms) {
    if (!each.offered) continue;
    text += (text.empty() ? "" : ", ") + std::string(each.name);
  }
  return text.replace(text.rfind(", "), 2, " or ");
}

}  // namespace amem
