#include "client/ctl/exit_code.h"

namespace amem::ctl {

ExitCode exit_code(Code code) {
  switch (code) {
    case Code::kOk:
      return kExitOk;
    case Code::kInvalidArgument:
    case Code::kOutOfRange:
      return kExitUsage;
    case Code::kUnavailable:
      return kExitUnreachable;
    case Code::kNotFound:
      return kExitNotFound;
    case Code::kFailedPrecondition:
    case Code::kAlreadyExists:
      return kExitWrongState;
    case Code::kDeadlineExceeded:
      return kExitDeadline;
    case Code::kResourceExhausted:
      return kExitResources;
    case Code::kPermissionDenied:
      return kExitPermission;
    default:
      return kExitFailed;
  }
}

}  // namespace amem::ctl
