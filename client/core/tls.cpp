#include "client/core/tls.h"

#include <fstream>
#include <iterator>

#include "common/tls_files.h"

namespace amem::client {
namespace {

std::string read(const std::string& dir, const char* name) {
  std::ifstream file(dir + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> mutual_tls(const std::string& dir) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = read(dir, kTlsAuthority);
  options.pem_cert_chain = read(dir, kTlsCertificate);
  options.pem_private_key = read(dir, kTlsKey);
  return grpc::SslCredentials(options);
}

}  // namespace amem::client
