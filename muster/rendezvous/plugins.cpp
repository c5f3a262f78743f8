#include "muster/rendezvous/plugins.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <exception>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

namespace muster::rendezvous {
namespace {

namespace fs = std::filesystem;

// Unloads the shared object unless it is kept.
struct Unload {
  void operator()(void* library) const { ::dlclose(library); }
};
using Library = std::unique_ptr<void, Unload>;

std::string loader_error() {
  const char* text = ::dlerror();
  return text == nullptr ? "no reason given" : text;
}

// Asks the plugin what is in it. It may throw although we do not.
Result<const PluginDescription*> ask(PluginEntry entry) {
  try {
    return entry();
  } catch (const std::exception& error) {
    return fail(ErrorKind::Invalid, fmt::format("its entry function throws: {}", error.what()));
  } catch (...) {
    return fail(ErrorKind::Invalid, "its entry function throws");
  }
}

Result<const PluginDescription*> describe_plugin(void* library) {
  void* symbol = ::dlsym(library, kPluginEntry);
  if (symbol == nullptr)
    return fail(ErrorKind::Invalid, fmt::format("it has no function {}", kPluginEntry));
  auto asked = ask(reinterpret_cast<PluginEntry>(symbol));
  if (!asked) return asked;
  const PluginDescription* description = *asked;
  if (description == nullptr) return fail(ErrorKind::Invalid, "it describes nothing");
  if (description->abi != kPluginAbi) {
    return fail(ErrorKind::Invalid,
                fmt::format("it was built for version {} of the interface, and this is version {}",
                            description->abi, kPluginAbi));
  }
  if (description->backend == nullptr || description->creator == nullptr)
    return fail(ErrorKind::Invalid, "its description is not complete");
  return description;
}

// The name of the backend if it was not there before, else nothing.
Result<std::string> load(const fs::path& file, Registry& registry) {
  const Library library(::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) return fail(ErrorKind::Invalid, loader_error());
  const auto description = describe_plugin(library.get());
  if (!description) return fail(description.error());
  std::string backend = (*description)->backend;
  const bool is_new = !registry.has(backend);
  // Owns nothing: the creator lives in the shared object. Sharing is for the registry's sake.
  std::shared_ptr<const Creator> creator((*description)->creator, [](const Creator*) {});
  const auto added = registry.add(backend, std::move(creator));
  if (!added) return fail(added.error());
  // Handlers have their code in it, and nobody knows how long they live.
  if (::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_NOLOAD) == nullptr)
    log::warn("rendezvous", "a plugin may be unloaded too early reason={}",
              log::quote(loader_error()));
  return is_new ? backend : std::string();
}

std::vector<fs::path> shared_objects(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator next(folder, error), end; !error && next != end;
       next.increment(error)) {
    std::error_code ignored;
    if (next->path().extension() == ".so" && next->is_regular_file(ignored))
      files.push_back(next->path());
  }
  if (error) {
    log::warn("rendezvous", "cannot read a plugin folder, going on without folder={} reason={}",
              log::quote(folder), log::quote(error.message()));
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace

std::vector<std::string> split_folders(std::string_view listed) {
  std::vector<std::string> folders;
  while (!listed.empty()) {
    const std::string_view folder = listed.substr(0, listed.find(':'));
    if (!folder.empty()) folders.emplace_back(folder);
    listed.remove_prefix(std::min(folder.size() + 1, listed.size()));
  }
  return folders;
}

std::vector<std::string> plugin_folders() {
  const char* listed = std::getenv(kPluginsVariable);
  std::vector<std::string> folders = split_folders(listed == nullptr ? "" : listed);
#ifdef MUSTER_PLUGIN_FOLDER
  std::error_code ignored;
  if (fs::is_directory(MUSTER_PLUGIN_FOLDER, ignored)) folders.emplace_back(MUSTER_PLUGIN_FOLDER);
#endif
  return folders;
}

std::vector<std::string> discover_plugins(Registry& registry,
                                          const std::vector<std::string>& folders) {
  std::vector<std::string> added;
  for (const std::string& folder : folders) {
    for (const fs::path& file : shared_objects(folder)) {
      auto loaded = load(file, registry);
      if (!loaded) {
        log::warn("rendezvous", "cannot use a plugin, going on without file={} reason={}",
                  log::quote(file.string()), log::quote(loaded.error().message));
      } else if (!loaded->empty()) {
        added.push_back(std::move(*loaded));
      }
    }
  }
  return added;
}

}  // namespace muster::rendezvous
