"""Does holding get easier or harder as networks grow? The family of latent DiTs on Tiny-ImageNet, by every way."""
