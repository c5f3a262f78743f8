# What the Cap'n Proto peer of the RPC comparison offers.
@0xd3a1f6f0c2b74e19;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("muster::bench::peer");

interface Bench {
  noop @0 ();
  echo @1 (data :Data) -> (data :Data);
}
