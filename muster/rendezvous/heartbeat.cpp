#include "muster/rendezvous/heartbeat.h"

namespace muster::rendezvous {

Duration until_tick(Duration wait, Duration interval, Duration wall_time) {
  const Duration tick = interval / kTicks;
  if (tick <= Duration::zero()) return wait;
  Duration past = (wall_time + wait + tick / 2) % tick;
  if (past < Duration::zero()) past += tick;
  const Duration length = wait + tick / 2 - past;
  return length > Duration::zero() ? length : length + tick;
}

}  // namespace muster::rendezvous
