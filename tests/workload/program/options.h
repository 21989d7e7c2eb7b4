// What the command line says about a run of the workload.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace amem::workload {

struct Options {
  int rank = 0;   // the first of this process
  int ranks = 1;  // of the job
  int devices_per_process = 1;
  int device = -1;  // of the first rank; -1: rank modulo the number of devices
  std::string rendezvous;
  unsigned communicators = 1;
  unsigned loop_threads = 1;  // of a rank; they share its communicators
  unsigned depth = 4;         // launches of a loop between two synchronisations
  std::chrono::milliseconds kernel_timeout{30000};
  std::chrono::milliseconds peer_timeout{30000};

  std::string trace;  // %r stands for the rank; empty: synthetic
  std::size_t scale = 1;
  bool teardown = false;

  unsigned allocations = 16;
  std::size_t bytes = std::size_t{2} << 20U;
  double shared = 0.5;
  bool network = false;  // ranks are on several nodes: nothing is shared but memory of the host

  unsigned zeros = 0;  // percent of 64-KiB blocks that are zero
};

/// Ends the process after --help and with status 2 after a mistake.
Options ParseOptions(int argc, char** argv);

}  // namespace amem::workload
