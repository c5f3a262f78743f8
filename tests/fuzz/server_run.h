// What the fuzz targets of the server share: one client sends whatever the input says, another must
// not notice.
#pragma once

#include "muster/wire/store_protocol.h"

#include <string_view>

namespace muster::tests {

// Lets a client send `input` to a Hub with small limits, and aborts if a promise is broken:
//  - what it is answered does not depend on how its bytes are cut;
//  - what is kept for it is bounded, also if it never reads;
//  - an observer reads what it wrote, before and after;
//  - a service (chat_service.h) and somebody who talks to it hear only what can be;
//  - no wait, no watch, no conversation and not one byte of memory is left when all is gone.
// The last two bytes of the input say how the others are cut. `begins_as` is what the client is
// taken to have said before: nothing, VALIDATE, or VALIDATE and UPGRADE.
void run_server(wire::Dialect begins_as, std::string_view input);

}  // namespace muster::tests
