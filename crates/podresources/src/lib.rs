//! The kubelet's PodResources API, version 1: which pod holds which device.
//!
//! # What it holds
//!
//! [`messages`] after `proto/api.proto`, [`Kubelet`] that asks, and (feature `server`) `serve`, the kubelet's side for pretend
//! kubelets and tests.
//!
//! # What flows in and out
//!
//! gRPC over the Unix socket `/var/lib/kubelet/pod-resources/kubelet.sock`. The kubelet makes the socket anew when it restarts,
//! so each connection is opened by path, and one that fails is opened again at the next call. Pods are told by namespace and
//! name: the API carries no UID. With Kubernetes 1.34 and newer only pods that have not ended are listed (KEP-3695, feature
//! gate `KubeletPodResourcesListUseActivePods`); before, ended ones too.
//!
//! # What must never be here
//!
//! What a device is, and what to do with it.

pub mod messages;

mod client;
#[cfg(feature = "server")]
mod server;

pub use client::{Kubelet, PodResourcesError};
#[cfg(feature = "server")]
pub use server::{ServeError, Source, serve};

/// Path of the method that lists all pods with their devices.
pub const LIST: &str = "/v1.PodResourcesLister/List";
/// Path of the method that lists all devices that can be given to pods.
pub const ALLOCATABLE: &str = "/v1.PodResourcesLister/GetAllocatableResources";
/// Where the kubelet listens.
pub const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
