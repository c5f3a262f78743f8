#include "muster/rpc/own_address.h"

#include "muster/base/fd.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <climits>
#include <ifaddrs.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <set>
#include <sys/socket.h>
#include <unistd.h>

namespace muster::rpc {
namespace {

Result<std::string> text_of(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = {};
  const int done = ::getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  if (done != 0) return fail(ErrorKind::Unavailable, ::gai_strerror(done));
  return std::string(host);
}

}  // namespace

Result<std::string> address_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return fail(ErrorKind::Unavailable, describe_errno(errno));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::set<std::string> names;
  Result<std::string> found = fail(ErrorKind::Invalid, "");
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr) continue;
      names.insert(entry->ifa_name);
      if (found || name != entry->ifa_name || entry->ifa_addr->sa_family != family) continue;
      found =
          text_of(entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    }
  }
  if (found) return found;
  return fail(ErrorKind::Invalid,
              fmt::format("there is no network interface {} with an address here; there are {}",
                          name, fmt::join(names, ", ")));
}

std::string address_of_this_machine() {
  const std::string loopback = "127.0.0.1";
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return loopback;
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(name, nullptr, &hints, &list) != 0) return loopback;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    const Fd fd(::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // A name that others chose for this machine may stand for an address that it does not have.
    if (!fd.is_open() || ::bind(fd.get(), entry->ai_addr, entry->ai_addrlen) != 0) continue;
    if (auto text = text_of(entry->ai_addr, entry->ai_addrlen)) return *text;
  }
  return loopback;
}

Result<std::string> address_towards(const net::Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string host = endpoint.host.empty() ? "localhost" : endpoint.host;
  const std::string port = fmt::to_string(endpoint.port);
  if (const int done = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list); done != 0) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot resolve {}: {}", host, ::gai_strerror(done)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    const Fd fd(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    // For datagrams this only asks the kernel for the route.
    if (fd.is_open() && ::connect(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0) {
      return text_of(reinterpret_cast<sockaddr*>(&own), size);
    }
    error = errno;
  }
  return fail(ErrorKind::Unavailable, fmt::format("there is no way to {}: {}",
                                                  net::describe(endpoint), describe_errno(error)));
}

}  // namespace muster::rpc
