"""Seconds a picture of whole pipelines: untouched, compiled, with Tenuto, and with its peers.

    python -m benchmarks.end_to_end --packages DIR      # all of it, on one GPU; DIR holds cache_dit
    python -m benchmarks.end_to_end --tiny --device cpu # the same code with miniature networks, to try it

configs    the published shapes of every network of every pipeline, and miniatures of them
building   a pipeline with random weights, made on the device
ways       what is done to a pipeline before it draws: nothing, torch.compile, Tenuto, a peer
planning   which rows, in which order, and how long each will take
measuring  one row: seconds, evaluations, memory, and what would be ideal
rounds     rows measured in rounds, and the interval of their ratio
report     the table
"""
