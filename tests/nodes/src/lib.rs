//! Pretend kubelets: GPU nodes whose containers are processes.
pub mod sandbox;
