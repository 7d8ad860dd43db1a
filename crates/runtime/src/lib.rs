//! Infrastructure shared by all servers.
//!
//! # Contents
//!
//! | module | purpose |
//! |---|---|
//! | [`telemetry`] | log lines as text or JSON, filter from a flag |
//! | [`shutdown`] | SIGTERM or SIGINT cancels a token; the second signal ends the process |
//! | [`health`] | named conditions behind `/readyz`, heartbeats behind `/livez` |
//! | [`buckets`] | rate limits per client |
//! | [`admin`] | the ports for `/metrics`, and for `/livez` and `/readyz` |
//! | [`listen`] | listeners of one address family, or of all that the machine has |
//! | [`access`] | authorization of pages: TokenReview and SubjectAccessReview |
//! | [`remembered`] | answers that are kept for a while |
//! | [`metrics`] | metrics as constants: registered, exposed and documented from one list; process metrics |
//! | [`server`] | HTTP/1.1 and HTTP/2 with limits on connections, headers, idle time and draining |
//! | [`certificates`] | self-made certificates: authority, renewal with overlap, expiry metrics |
//! | [`tls`] | rustls configuration from PEM files, client certificates with expected names, reload |
//! | [`client`] | a Kubernetes client with a deadline for every call |
//! | [`clock`] | the API server's time and this machine's clock skew |
//! | [`watch`] | list and watch of slim types that survives 410, bad objects and busy API servers |
//! | [`lease`] | leader election on a `coordination.k8s.io/v1` Lease |
//! | `testing` | behind a feature: what tests of the programs share |
//!
//! # Data flow
//!
//! In: flags (each module has a `clap` struct to flatten), files, the API server. Out: running servers,
//! events, a client. Every long-lived task takes a [`tokio_util::sync::CancellationToken`] and ends when it
//! is cancelled.
//!
//! # Not allowed
//!
//! Knowledge of `TrainingJob`s. What the command line uses runs on Windows too; servers are for Linux. Of the workspace, this crate uses the vocabulary alone.

#[cfg(unix)]
pub mod access;
#[cfg(unix)]
pub mod admin;
pub mod arguments;
pub mod buckets;
pub mod certificates;
pub mod client;
pub mod clock;
pub mod health;
pub mod kubeconfig;
pub mod lease;
#[cfg(unix)]
pub mod listen;
pub mod metrics;
pub mod proxy;
pub mod remembered;
#[cfg(unix)]
pub mod server;
#[cfg(unix)]
pub mod shutdown;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tls;
pub mod watch;

mod jitter;

/// Makes *ring* the cryptography provider of the process, once; later calls do nothing.
///
/// Call it before a library builds a TLS configuration with the process default, as the Kubernetes client
/// does.
pub fn install_crypto() {
    // An error only means that a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
