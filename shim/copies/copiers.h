// Copiers: the table of what writes and reads each form that bytes can lie in (form_copier.h).
// Service thread only.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "common/driver.h"
#include "shim/copies/dense_copier.h"
#include "shim/copies/sparse_copier.h"
#include "shim/driver/local_devices.h"

namespace amem::shim {

class Copiers {
 public:
  Copiers(const Driver& driver, LocalDevices& devices)
      : dense_(driver, devices), sparse_(driver, devices) {
#ifdef AMEM_TEST_SEAMS
    test_ = make_test_copier(driver, devices);
    all_.emplace_back(Form::kXor, test_.get());
#endif
    all_.emplace_back(Form::kSparse, &sparse_);
    all_.emplace_back(Form::kDense, &dense_);
  }

  /// In the order in which a piece is offered to them when the wish leaves a choice, dense last:
  /// it takes what the others have left.
  const std::vector<std::pair<Form, FormCopier*>>& all() const { return all_; }
  /// REQUIRES: bytes can lie in this form.
  FormCopier& of(Form form) {
    for (const auto& [each, copier] : all_)
      if (each == form) return *copier;
    return dense_;
  }
  DenseCopier& dense() { return dense_; }
  /// Also what looks at memory: for zeros, words and checksums.
  SparseCopier& sparse() { return sparse_; }

 private:
  DenseCopier dense_;
  SparseCopier sparse_;
#ifdef AMEM_TEST_SEAMS
  std::unique_ptr<FormCopier> test_;
#endif
  std::vector<std::pair<Form, FormCopier*>> all_;
};

}  // namespace amem::shim
