//! Events of kubelets about pods, as the step gets them.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// An Event of a kubelet about a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodEvent {
    /// In a word: `Evicted`, `Killing`, `Unhealthy`, `FailedMount`...
    pub reason: String,
    /// For people.
    pub message: String,
    /// The container that it is about; `None`: the whole pod.
    pub container: Option<String>,
    /// A `Warning`.
    pub warning: bool,
    /// When it happened first, by the node's clock.
    pub first: Option<Timestamp>,
}

/// Why a pod's Events could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsUnread {
    /// For people.
    pub message: String,
    /// To ask again is of no use.
    pub lasting: bool,
}

/// Events of pods by their UID; absent: not asked.
pub type KubeletEvents = BTreeMap<String, Result<Vec<PodEvent>, EventsUnread>>;
