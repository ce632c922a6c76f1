"""What the optimizers of several frontends share: how they combine gradients, which parameters of
the ranks belong together, and how they check that parameters are the same."""
