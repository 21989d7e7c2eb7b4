#include "common/tls_files.h"

#include <fstream>

namespace amem {

Status check_tls_files(const std::string& dir) {
  for (const char* name : {kTlsAuthority, kTlsCertificate, kTlsKey})
    if (std::ifstream(dir + name).peek() == std::ifstream::traits_type::eof())
      return {Code::kInvalidArgument,
              dir + name + " cannot be read or is empty; TLS needs ca.crt, tls.crt and tls.key"};
  return {};
}

}  // namespace amem
