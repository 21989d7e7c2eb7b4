// TLS to a broker on another node: both ends show a certificate of one authority.
//
// Functions without state; any thread.
#pragma once

#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

namespace amem::client {

/// What cannot be read is empty, and then no connection comes about; check_tls_files() says why.
std::shared_ptr<grpc::ChannelCredentials> mutual_tls(const std::string& dir);

}  // namespace amem::client
