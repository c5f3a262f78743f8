"""Rendezvous, launching, and what workers report.

muster.elastic.rendezvous  how nodes come together, with the names of PyTorch's
muster.elastic.launch      `elastic_launch`: a function, or a program, run by `muster run`
muster.elastic.errors      `record`: what a worker failed with gets into the agent's report
muster.elastic.timer       deadlines that the agent keeps for a worker, and signs of life
muster.elastic.events      records of what happens
muster.elastic.metrics     numbers
"""
