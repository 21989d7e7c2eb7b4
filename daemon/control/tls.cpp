#include "daemon/control/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include "common/tls_files.h"

namespace amem {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned kReadAgainSeconds = 60;

}  // namespace

Result<std::shared_ptr<grpc::ServerCredentials>> mutual_tls(const std::string& dir) {
  if (const Status status = check_tls_files(dir); !status.ok())
    return Status(status.code(), "control.tls: " + status.text());
  const auto files = std::make_shared<tls::FileWatcherCertificateProvider>(
      dir + kTlsKey, dir + kTlsCertificate, dir + kTlsAuthority, kReadAgainSeconds);
  tls::TlsServerCredentialsOptions options(files);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(options);
}

}  // namespace amem
