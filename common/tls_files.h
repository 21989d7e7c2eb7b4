// The files of one end of mutual TLS, named as a Secret of Kubernetes names them.
//
// Functions without state; any thread.
#pragma once

#include <fstream>
#include <string>

#include "common/status.h"

namespace amem {

inline constexpr const char* kTlsAuthority = "/ca.crt";  // in the directory
inline constexpr const char* kTlsCertificate = "/tls.crt";
inline constexpr const char* kTlsKey = "/tls.key";

/// kInvalidArgument: names the file that cannot be read, or has nothing in it.
inline Status check_tls_files(const std::string& dir) {
  for (const char* name : {kTlsAuthority, kTlsCertificate, kTlsKey})
    if (std::ifstream(dir + name).peek() == std::ifstream::traits_type::eof())
      return {Code::kInvalidArgument,
              dir + name + " cannot be read or is empty. TLS requires ca.crt, tls.crt and tls.key"};
  return {};
}

}  // namespace amem
