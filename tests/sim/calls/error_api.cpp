// cuGetErrorName and cuGetErrorString.
#include "tests/sim/entry/api.h"

namespace sim {
namespace {

struct ErrorText {
  const char* name;
  const char* description;
};

const ErrorText* FindError(CUresult error) {
  switch (error) {
#define SIM_ERROR(name, description)                      \
  case name: {                                            \
    static constexpr ErrorText kText{#name, description}; \
    return &kText;                                        \
  }
#include "tests/sim/calls/errors.inc"
#undef SIM_ERROR
  }
  return nullptr;
}

CUresult Text(CUresult error, const char* ErrorText::*part, const char** out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* const text = FindError(error);
  *out = text != nullptr ? text->*part : nullptr;
  return text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace
}  // namespace sim

SIM_API cuGetErrorName(CUresult error, const char** out) {
  return sim::Text(error, &sim::ErrorText::name, out);
}

SIM_API cuGetErrorString(CUresult error, const char** out) {
  return sim::Text(error, &sim::ErrorText::description, out);
}
