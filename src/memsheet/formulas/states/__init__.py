"""Parameters, master weights, gradients and optimizer states, tensor by tensor."""
