//! The kubelet's PodResources API, version 1: maps devices to pods.
//!
//! # What it holds
//!
//! [`messages`] from `proto/api.proto` of this crate, [`Kubelet`] (the client), and with feature `testing` `serve`, the
//! server side for pretend kubelets and tests.
//!
//! # What flows in and out
//!
//! gRPC over the Unix socket `/var/lib/kubelet/pod-resources/kubelet.sock`. The kubelet recreates the socket
//! on restart. Connections are therefore opened by path, and a failed one is reopened at the next call. Pods
//! are identified by namespace and name: the API has no UID. Kubernetes 1.34 and newer list only pods that
//! have not ended (KEP-3695, feature gate `KubeletPodResourcesListUseActivePods`). Older versions list ended
//! pods too.
//!
//! # What must never be here
//!
//! Interpretation of devices.

pub mod messages;

mod client;
#[cfg(feature = "testing")]
mod testing;

pub use client::{Kubelet, PodResourcesError};
#[cfg(feature = "testing")]
pub use testing::{ServeError, Source, serve};

/// Path of the method that lists all pods with their devices.
pub const LIST: &str = "/v1.PodResourcesLister/List";
/// Default path of the kubelet's socket.
pub const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
