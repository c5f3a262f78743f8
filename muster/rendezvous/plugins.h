// Plugins: backends of others, in shared objects that are loaded when the program starts.
//
// A plugin is a file `*.so` with one function, `muster_rendezvous_plugin`, which says what is in
// it:
//
//   class MyCreator final : public muster::rendezvous::Creator { … };
//   extern "C" const muster::rendezvous::PluginDescription* muster_rendezvous_plugin() {
//     static const MyCreator creator;
//     static const muster::rendezvous::PluginDescription description{
//         .abi = muster::rendezvous::kPluginAbi, .backend = "mine", .creator = &creator};
//     return &description;
//   }
//
// Only the entry is C: the creator is a C++ object, so a plugin is built with the headers and the
// compiler of the program that loads it, and `abi` is there to notice when it was not.
#pragma once

#include "muster/rendezvous/registry.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rendezvous {

// Changes with every change of Creator, Handler and what they consist of.
inline constexpr std::uint32_t kPluginAbi = 1;

// The first field stays the first for ever; nothing else is read if it is not the right one.
struct PluginDescription {
  std::uint32_t abi = 0;
  const char* backend = nullptr;
  const Creator* creator = nullptr;  // lives as long as the program
};

inline constexpr const char* kPluginEntry = "muster_rendezvous_plugin";
using PluginEntry = const PluginDescription* (*)();

// The folders to look in: those that MUSTER_RENDEZVOUS_PLUGINS lists, separated by colons, and then
// the one that belongs to the installation, if it is there.
inline constexpr const char* kPluginsVariable = "MUSTER_RENDEZVOUS_PLUGINS";
std::vector<std::string> plugin_folders();
// The list in `listed`, without empty items.
std::vector<std::string> split_folders(std::string_view listed);

// Registers what it finds: folder by folder, in each in the order of file names. Backends that are
// registered already stay. What cannot be used is logged as a warning and passed over, so that a
// broken plugin hurts only those who want it. May be repeated, and then finds what is new. Returns
// the names that were added. A plugin that was taken is never unloaded.
std::vector<std::string> discover_plugins(Registry& registry,
                                          const std::vector<std::string>& folders);

}  // namespace muster::rendezvous

// What a plugin defines.
extern "C" const muster::rendezvous::PluginDescription* muster_rendezvous_plugin();
