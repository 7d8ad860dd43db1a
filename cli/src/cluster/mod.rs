//! The cluster, by HTTP: the API server that kubectl's configuration names, and ports of pods through it.
//!
//! **Holds** the flags that select a cluster and a namespace ([`ConnectArgs`], [`Namespaces`]), the client ([`Cluster`]),
//! and errors that name the missing right ([`ClusterError`]).
//!
//! **Flows**: flags in; objects of the API server out. Lists are read in pages and are bounded; an object that cannot be
//! decoded is left out with a warning.
//!
//! **Must never be here**: what a command prints, or what it decides.

mod access;
mod connect;
mod error;
mod forward;
mod objects;
#[cfg(test)]
pub mod testing;

pub use access::Right;
pub use connect::{Cluster, ConnectArgs, Namespaces, Scope, bearer_token, block_on};
pub use error::ClusterError;
pub use forward::{PodPort, Reply};
pub use objects::{Listed, MAX_OBJECTS, Selection};
