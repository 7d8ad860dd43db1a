//! Pretend kubelets: GPU nodes whose containers are processes.
