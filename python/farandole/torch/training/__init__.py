"""How the optimizers of torch combine gradients."""
