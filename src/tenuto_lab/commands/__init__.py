"""Commands of `tenuto` that are the laboratory's, one file each. The command line finds them by entry points."""
