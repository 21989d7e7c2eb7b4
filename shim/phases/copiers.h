// Copiers: the table of what writes and reads each form that bytes can lie in (form_copier.h).
// Service thread only.
#pragma once

#include <array>
#include <utility>

#include "common/driver.h"
#include "shim/driver/local_devices.h"
#include "shim/phases/dense_copier.h"
#include "shim/phases/sparse_copier.h"

namespace amem::shim {

class Copiers {
 public:
  Copiers(const Driver& driver, LocalDevices& devices)
      : dense_(driver, devices), sparse_(driver, devices) {}

  /// REQUIRES: bytes can lie in this form.
  FormCopier& of(Form form) {
    for (const auto& [each, copier] : all_)
      if (each == form) return *copier;
    return dense_;
  }
  /// In the order in which a piece is offered to them when the wish leaves a choice, dense last:
  /// it takes what the others have left.
  const auto& all() { return all_; }
  DenseCopier& dense() { return dense_; }
  /// Also what looks at memory: for zeros, words and checksums.
  SparseCopier& sparse() { return sparse_; }

 private:
  DenseCopier dense_;
  SparseCopier sparse_;
  const std::array<std::pair<Form, FormCopier*>, 2> all_{
      {{Form::kSparse, &sparse_}, {Form::kDense, &dense_}}};
};

}  // namespace amem::shim
