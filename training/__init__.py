"""How the shipped models are trained and measured: `python -m training.train_dit --help`, and so on."""
