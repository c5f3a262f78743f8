#include "muster/etcd/curl_library.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <dlfcn.h>

namespace muster::etcd {
namespace {

constexpr const char* kName = "libcurl.so.4";

struct Loaded {
  CurlLibrary library;
  std::string problem;  // empty: it is there
};

template <typename Function>
void find(void* handle, const char* name, Function& place, std::string& problem) {
  place = reinterpret_cast<Function>(::dlsym(handle, name));
  if (place == nullptr && problem.empty()) problem = fmt::format("{} has no {}", kName, name);
}

Loaded load() {
  Loaded loaded;
  // Never closed: its threads and handlers may outlive us.
  void* handle = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = ::dlerror();
    loaded.problem = reason == nullptr ? fmt::format("{} cannot be loaded", kName) : reason;
    return loaded;
  }
  CurlLibrary& library = loaded.library;
  std::string& problem = loaded.problem;
  find(handle, "curl_global_init", library.global_init, problem);
  find(handle, "curl_easy_init", library.easy_init, problem);
  find(handle, "curl_easy_cleanup", library.easy_cleanup, problem);
  find(handle, "curl_easy_setopt", library.easy_setopt, problem);
  find(handle, "curl_easy_getinfo", library.easy_getinfo, problem);
  find(handle, "curl_easy_pause", library.easy_pause, problem);
  find(handle, "curl_easy_strerror", library.easy_strerror, problem);
  find(handle, "curl_multi_init", library.multi_init, problem);
  find(handle, "curl_multi_cleanup", library.multi_cleanup, problem);
  find(handle, "curl_multi_setopt", library.multi_setopt, problem);
  find(handle, "curl_multi_add_handle", library.multi_add_handle, problem);
  find(handle, "curl_multi_remove_handle", library.multi_remove_handle, problem);
  find(handle, "curl_multi_socket_action", library.multi_socket_action, problem);
  find(handle, "curl_multi_info_read", library.multi_info_read, problem);
  find(handle, "curl_slist_append", library.slist_append, problem);
  find(handle, "curl_slist_free_all", library.slist_free_all, problem);
  if (!problem.empty()) return loaded;
  // Thread-safe in the versions of libcurl that we accept, and never undone: others may use it too.
  if (library.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    problem = fmt::format("{} cannot be initialised", kName);
  }
  return loaded;
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

Result<> load_curl() {
  if (loaded().problem.empty()) return {};
  return fail(
      ErrorKind::Unavailable,
      fmt::format("etcd needs libcurl (on Debian the package libcurl4): {}", loaded().problem));
}

const CurlLibrary& curl() {
  MUSTER_ASSERT(loaded().problem.empty());
  return loaded().library;
}

}  // namespace muster::etcd
