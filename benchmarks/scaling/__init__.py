"""Does holding get easier or harder as networks grow? The family on Tiny-ImageNet (DiTs, a UNet), by every way."""
