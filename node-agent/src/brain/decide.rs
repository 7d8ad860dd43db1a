//! The heart: what is wanted of each GPU, by what is seen. Pure: no clock, no I/O, no order of a hash map.
//!
//! # The rules
//!
//! 1. Nothing is set while the operator's leader Lease is not seen to move, or while the node has no GpuNode.
//! 2. A GPU that a pod holds, that a process uses, or of which that is not known, is awake. So is every GPU while the kubelet cannot be
//!    asked.
//! 3. After `spec.wake` was raised every GPU is awake for a while, so that the pod that is coming finds it so.
//! 4. Any other GPU rests once it was unheld for `rest.after`: SM clocks locked at their lowest; where clocks cannot be locked, the
//!    power limit at its lowest. Neither lowers the draw of a GPU without a context; both bound one that wakes unannounced, and
//!    low clocks take back what a parked context costs (EnergyPolicy `rest`, NVML reference: locked clocks).
//! 5. A held GPU has the power limit that the operator wants for its pod, inside the driver's range, when the policy says `On`.
//! 6. A GPU that is lost or hangs gets no command.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::gpu::Facts;
use crate::setting::{Setting, Uuid};

/// Who holds a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Holder {
    /// No pod.
    #[default]
    Nobody,
    /// A pod, as `namespace/name`.
    Pod(String),
    /// The kubelet cannot be asked, or speaks of devices that cannot be told apart (MIG, time slices, claims).
    Unknown,
}

/// One GPU as seen now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// What the driver allows; `None` while it was not told.
    pub facts: Option<Facts>,
    /// Who holds it.
    pub holder: Holder,
    /// Processes with a context on it.
    pub processes: u32,
    /// Whether it answers and is well.
    pub healthy: bool,
}

/// The parts of `EnergyPolicy` that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether unheld GPUs rest.
    pub rest: bool,
    /// How long a GPU is unheld before it rests.
    pub rest_after: Duration,
    /// How long all GPUs stay awake after a wake.
    pub awake_for: Duration,
    /// Whether pods' power limits are set.
    pub limits: bool,
    /// Whether a GPU rests although a process of no pod has a context there.
    pub rest_parked: bool,
}

/// The parts of `GpuNode.spec` that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredSettings {
    /// Generation of the spec.
    pub generation: i64,
    /// `spec.wake`.
    pub wake: i64,
    /// Power limit by pod, W.
    pub limits: BTreeMap<String, u32>,
}

/// Everything that is seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The GPUs.
    pub gpus: BTreeMap<Uuid, Seen>,
    /// What the operator wants; `None` while there is no GpuNode.
    pub orders: Option<DesiredSettings>,
    /// What the administrator wants.
    pub policy: Policy,
    /// Whether the leader Lease was seen to move lately.
    pub leader_moves: bool,
}

/// What one decision hands to the next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Since when each GPU is unused.
    unused_since: BTreeMap<Uuid, Duration>,
    /// The last wake that was seen.
    wake: Option<i64>,
    /// When it was seen. No GPU rests for a while after, by the policy that holds then.
    woken_at: Duration,
}

/// What is wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// GPUs on which something is set; the others are as they were found.
    pub wanted: BTreeMap<Uuid, Setting>,
    /// Those of them that rest.
    pub resting: BTreeSet<Uuid>,
    /// The orders that this carries out.
    pub orders: Option<(i64, i64)>,
}

/// Decides. `now` is any clock that never goes back.
#[must_use]
pub fn decide(memory: Memory, observed: &Observed, now: Duration) -> (Memory, Decision) {
    let policy = &observed.policy;
    let mut memory = memory;
    memory.unused_since.retain(|uuid, _| observed.gpus.contains_key(uuid));
    if let Some(orders) = &observed.orders {
        // Also at our start: what was asked before we lived may be meant for a pod that is on its way.
        if memory.wake != Some(orders.wake) {
            memory.wake = Some(orders.wake);
            memory.woken_at = now;
        }
    }
    let mut decision =
        Decision { orders: observed.orders.as_ref().map(|o| (o.generation, o.wake)), ..Decision::default() };
    for (uuid, seen) in &observed.gpus {
        let unused = seen.holder == Holder::Nobody && (seen.processes == 0 || policy.rest_parked);
        if !unused {
            memory.unused_since.remove(uuid);
        } else {
            memory.unused_since.entry(uuid.clone()).or_insert(now);
        }
        let (Some(orders), true, true) = (&observed.orders, observed.leader_moves, seen.healthy) else {
            continue;
        };
        let Some(facts) = &seen.facts else { continue };
        let since = memory.unused_since.get(uuid);
        let rests = policy.rest
            && now.saturating_sub(memory.woken_at) >= policy.awake_for
            && since.is_some_and(|since| now.saturating_sub(*since) >= policy.rest_after);
        let setting = match &seen.holder {
            Holder::Pod(pod) if policy.limits => limit(orders, pod, facts),
            Holder::Nobody if rests => rest(facts),
            _ => Setting::default(),
        };
        if setting.is_default() {
            continue;
        }
        if seen.holder == Holder::Nobody {
            decision.resting.insert(uuid.clone());
        }
        decision.wanted.insert(uuid.clone(), setting);
    }
    (memory, decision)
}

fn limit(orders: &DesiredSettings, pod: &str, facts: &Facts) -> Setting {
    let (Some(watts), Some((lowest, highest))) = (orders.limits.get(pod), facts.limit_mw) else {
        return Setting::default();
    };
    let limit = watts.saturating_mul(1000).clamp(lowest, highest.max(lowest));
    Setting { limit_mw: Some(limit), clock_mhz: None }
}

fn rest(facts: &Facts) -> Setting {
    match (facts.clock_mhz, facts.limit_mw) {
        (Some((lowest, _)), _) => Setting { clock_mhz: Some(lowest), limit_mw: None },
        (None, Some((lowest, _))) => Setting { limit_mw: Some(lowest), clock_mhz: None },
        (None, None) => Setting::default(),
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
