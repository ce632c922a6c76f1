"""What the optimizers of several frontends share: how they combine gradients, which parameters of
the ranks belong together, and whether they are the same."""
