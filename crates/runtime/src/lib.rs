//! What every server of the house needs before it can do its own work.
//!
//! # What it holds
//!
//! | module | what it does |
//! |---|---|
//! | [`telemetry`] | log lines as text or JSON, filter from a flag |
//! | [`shutdown`] | SIGTERM or SIGINT cancels a token; the second signal ends the process |
//! | [`health`] | named conditions behind `/readyz`, heartbeats behind `/livez` |
//! | [`buckets`] | how much each client may use of what all share |
//! | [`admin`] | the ports for `/metrics`, and for `/livez` and `/readyz` |
//! | [`access`] | who may read a page: TokenReview and SubjectAccessReview |
//! | [`metrics`] | metrics as constants: registered, exposed and documented from one list; what every process says of itself |
//! | [`server`] | HTTP/1.1 and HTTP/2 with limits on connections, headers, idleness and draining |
//! | [`certificates`] | certificates of our own: authority, renewal with overlap, expiry as metrics |
//! | [`tls`] | rustls configuration from PEM files, client certificates with expected names, reload |
//! | [`client`] | a Kubernetes client in which no call can hang for ever |
//! | [`clock`] | the API server's time, and how far this machine's clock is from it |
//! | [`watch`] | list and watch of slim types that survives 410, bad objects and busy API servers |
//! | [`lease`] | leader election on a `coordination.k8s.io/v1` Lease |
//!
//! # What flows in and out
//!
//! In: flags (each module has a `clap` struct to flatten), files, the API server. Out: running servers, events, a client.
//! Everything long-lived takes a [`tokio_util::sync::CancellationToken`] and ends when it is cancelled.
//!
//! # What must never be here
//!
//! Anything that knows what a `TrainingJob` is. This crate depends on none of the other rooms.

pub mod access;
pub mod admin;
pub mod buckets;
pub mod certificates;
pub mod client;
pub mod clock;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod server;
pub mod shutdown;
pub mod telemetry;
pub mod tls;
pub mod watch;

mod jitter;

/// Makes *ring* the process's cryptography, once; later calls do nothing.
///
/// Needed before any TLS configuration is built by a library that asks for the process default (the Kubernetes client does).
pub fn install_crypto() {
    // An error only says that a provider is installed already, which is what is wanted.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
