#include "muster/base/error.h"

#include <cctype>
#include <cstring>

namespace muster {

std::string_view name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Invalid:
      return "invalid";
    case ErrorKind::Unavailable:
      return "unavailable";
    case ErrorKind::Timeout:
      return "timeout";
    case ErrorKind::Conflict:
      return "conflict";
    case ErrorKind::Closed:
      return "closed";
    case ErrorKind::Unimplemented:
      return "unimplemented";
    case ErrorKind::Cancelled:
      return "cancelled";
    case ErrorKind::Corrupt:
      return "corrupt";
    case ErrorKind::Finished:
      return "finished";
  }
  return "unknown";
}

std::string describe_errno(int number) {
  char buffer[128] = {};
  std::string text = ::strerror_r(number, buffer, sizeof buffer);
  // "Connection refused" reads better behind a colon in lower case; "I/O error" must stay as it is.
  if (text.size() > 1 && std::islower(static_cast<unsigned char>(text[1])) != 0) {
    text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  }
  return text;
}

}  // namespace muster
