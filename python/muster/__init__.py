"""Muster: gathers processes on many machines into one job, and lets them call one another.

muster.rpc      calls between the workers of a job, with the names of torch.distributed.rpc
muster.store    key-value stores that processes share
muster.elastic  rendezvous, launching, and what workers report
"""
