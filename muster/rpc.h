// Muster's RPC, all that programs need: functions that workers of a group call of each other
// (rpc/call.h), references to values that live on one of them (rref/rref.h), and joining and
// leaving the group (worker/worker.h). docs/rpc.md tells it by example.
#pragma once

#include "muster/rpc/call.h"       // IWYU pragma: export
#include "muster/rref/rref.h"      // IWYU pragma: export
#include "muster/worker/worker.h"  // IWYU pragma: export
