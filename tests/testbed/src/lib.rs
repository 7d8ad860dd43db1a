//! A real control plane on loopback, with pretend GPU nodes.
