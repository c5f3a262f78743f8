// FileStore: a Store in a file that several processes share, in the format of PyTorch's FileStore,
// so that unmodified PyTorch processes can use the same file at the same time.
//
// The file is an append-only log under flock; file_log.h has the format. A writer that was killed
// in the middle of a record leaves a tail that the next one to come by cuts off. The file only
// grows; it is meant for the life of one job.
//
// Lives on one loop, and never blocks it: a lock held by someone else is tried again with back-off.
// On an EpollLoop the kernel tells when another process of this host has written, so a waiter
// learns of it at once. In any case the file is looked at again and again, at intervals that grow
// while nothing happens (`look_first` to `look_max`); so it works on any loop and over network file
// systems that support flock, where a waiter learns of another host's write up to `look_max` late.
//
// What users should know:
//  - When the file is removed, replaced or emptied by someone else, every operation from then on is
//  Closed. PyTorch
//    removes it when as many of its processes have finished as its world size says; this store
//    counts as none of them and removes nothing.
//  - A file that is not a store's is left as it is, and every operation on it is Invalid.
//  - Keys and queue names have at most 8192 bytes, values and items 8 MiB, one call 131072 keys;
//  more is Invalid.
//  - As in PyTorch's FileStore, an empty value counts as 0 for `add`, and PyTorch's own two
//  counters count as keys.
//  - `barrier` is PyTorch's for stores without one of their own, with KEY/num_members and
//  KEY/last_member.
//  - PyTorch processes cannot see queues. They also never stop reading a record whose writer was
//  killed before it ended;
//    until such a process is ended itself, the operations that write are Unavailable.
//  - Requires: a process that was forked and goes on without exec does not use its parent's store;
//  it makes its own.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/store/store.h"

#include <cstddef>
#include <memory>
#include <string>

namespace muster::store {

struct FileStoreOptions {
  std::string path;
  // How long an operation may wait for other processes' locks before it is Unavailable.
  Duration lock_patience = std::chrono::seconds(60);
  // How soon to look for what others wrote after something happened, and how long to put it off
  // when nothing does.
  Duration look_first = std::chrono::milliseconds(5);
  Duration look_max = std::chrono::milliseconds(250);
};

// Of one call to check, wait, multi_get, multi_set.
inline constexpr std::size_t kFileKeysMax = 131'072;

// Creates the file if needed. Requires: `loop` and `random` outlive the store.
Result<std::unique_ptr<Store>> make_file_store(Loop& loop, Random& random,
                                               FileStoreOptions options);

}  // namespace muster::store
