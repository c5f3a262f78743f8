// Sabotage: drivers with one fault each, to prove that the simulation would notice it. The fault is
// in what stands between a driver and its store or server.
#pragma once

#include "tests/rendezvous_sim/world.h"

namespace muster::rendezvous::testing {

enum class Fault {
  // Over a shared store.
  IgnoresTheToken,    // writes whatever has been written meanwhile
  LosesWrites,        // every second write is acknowledged and not done
  ThawsTheSize,       // the size of a complete round is that of the members it still has
  OpensWhatIsClosed,  // a closed run looks open, and is with the next write
  GivesNoSigns,       // signs of life are not given
  GrantsTwice,        // wishes that have been granted are granted again, for ever
  // Through a server.
  MiscountsMembers,  // rank 0 believes to be one of one more
  GivesRanksTwice,   // everybody is rank 0
  LosesNews,         // a member is not told what it should know
};
inline constexpr Fault kSharedFaults[] = {Fault::IgnoresTheToken, Fault::LosesWrites,
                                          Fault::ThawsTheSize,    Fault::OpensWhatIsClosed,
                                          Fault::GivesNoSigns,    Fault::GrantsTwice};
inline constexpr Fault kHostedFaults[] = {Fault::MiscountsMembers, Fault::GivesRanksTwice,
                                          Fault::LosesNews};
std::string_view name_of(Fault fault);

Sabotage make_sabotage(Fault fault);

}  // namespace muster::rendezvous::testing
