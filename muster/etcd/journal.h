// Journal: carries out transactions on etcd exactly once.
//
// Each transaction also puts a random id into the journal's own key, if no fence forbids that id.
// If the answer is lost, we first put up the fence, so that an attempt that is still on its way
// comes to nothing, and then look for the id in the history of the key: it is there, or it never
// will be.
//
// Owned by one store, on the client's loop.
#pragma once

#include "muster/etcd/client.h"
#include "muster/rendezvous/turnstile.h"

#include <cstdint>
#include <string>
#include <vector>

namespace muster::etcd {

class Journal {
 public:
  // Requires: `client` outlives it; `root` is the beginning of keys that nobody else uses.
  Journal(Client& client, std::string root);

  struct Outcome {
    std::int64_t revision = 0;  // of the write, if it succeeded
    bool succeeded = false;
    // Empty when the answer was lost and the journal told the outcome; then what is there at
    // `revision`, and before it, must tell the rest.
    std::vector<OperationReply> replies;
    bool recalled = false;
  };
  // Requires: `failure` only reads, or `success` and `failure` are as good as each other to the
  // caller when the outcome is recalled.
  Task<Result<Outcome>> write(Txn txn);

 private:
  struct Lookup {
    bool found = false;
    std::int64_t revision = 0;
  };
  // Puts up the fence and looks for the write. Fails if the lease of the write has run out.
  Task<Result<Lookup>> look_up(std::string id, std::int64_t lease_id, std::int64_t before);
  // Makes sure that there is a lease for the journal's key.
  Task<Result<>> have_lease();

  Client& client_;
  const std::string root_;
  const std::string key_;
  std::int64_t lease_id_ = 0;
  rendezvous::Turnstile leasing_;
};

}  // namespace muster::etcd
