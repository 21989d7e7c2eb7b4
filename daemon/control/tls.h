// TLS for the control API on TCP: both ends show a certificate of one authority.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "common/status.h"

namespace amem {

/// `dir` has ca.crt, tls.crt and tls.key, as a Secret of Kubernetes does. They are read again every
/// minute, so that certificates can be renewed. kInvalidArgument: a file is missing or empty.
Result<std::shared_ptr<grpc::ServerCredentials>> mutual_tls(const std::string& dir);

}  // namespace amem
