"""Other caches for masked diffusion language models, as they were published.

fast_dllm   Fast-dLLM's prefix and dual cache, with its own loop
rules       which positions an evaluation computes: Fast-dLLM, dKV-Cache, Elastic-Cache's window, and ours, in one loop
dllm_cache  dLLM-Cache: prompt and answer are refreshed at different periods, and the tokens that changed most between
"""
