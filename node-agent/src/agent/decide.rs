//! Desired settings of each GPU, from what was observed. Pure and deterministic: no clock, no I/O, no
//! hash-map order.
//!
//! # The rules
//!
//! 1. Nothing is set while the operator's leader Lease is not being renewed, or while the node has no
//!    GpuNode.
//! 2. A GPU stays awake if a pod holds it, a process uses it, or this is not known. All GPUs stay awake while
//!    the kubelet does not answer; the pods that it named last keep their power limits.
//! 3. After `spec.wakeGeneration` is raised, every GPU stays awake for the policy's wake time, ready for the next pod.
//! 4. Any other GPU rests after it was unheld for `rest.after`: SM clocks locked at the minimum. If clocks
//!    cannot be locked, the power limit is set to its minimum. Minima are the driver's or the administrator's floor. Neither
//!    lowers the draw of a GPU without a context. Both cap a GPU that becomes busy unannounced, and low clocks reduce the draw of a parked
//!    context (EnergyPolicy `rest`, NVML reference: locked clocks). It stays awake if a measurement showed that rest saves
//!    nothing on its type, and if it draws its bare idle: rest would change nothing then, and clocks that others have locked are not
//!    known.
//! 5. A held GPU gets the power limit that the operator wants for its pod, from the lowest one on, unless the policy says `Off`. One that
//!    is not below the GPU's ceiling is no limit: nothing is set. While a pod with a limit has no GPU yet, every GPU that nobody holds
//!    gets the lowest limit of such pods: whichever the kubelet gives it, the limit is in force before the pod runs.
//! 6. An unhealthy GPU gets no command, except that a pod on it keeps its power limit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::gpu::{Facts, Sample};
use crate::setting::{Setting, Uuid};

/// The holder of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Holder {
    /// No pod.
    #[default]
    Nobody,
    /// A pod, as `namespace/name`.
    Pod(String),
    /// Unknown: the kubelet does not answer and named no pod before, or its device IDs are ambiguous (MIG, time slices, claims).
    Unknown,
}

/// One observation of a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuObservation {
    /// Limits of the driver, from the administrator's floor to the GPU's ceiling; `None` until they are read.
    pub facts: Option<Facts>,
    /// The holder.
    pub holder: Holder,
    /// Number of processes with a context on it; `None` if unknown.
    pub processes: Option<u32>,
    /// Whether it draws its bare idle, without any setting: [`is_at_rest`].
    pub at_rest: bool,
    /// Whether rest was measured to save nothing on such a GPU.
    pub rest_useless: bool,
    /// Whether it responds and is healthy.
    pub healthy: bool,
}

/// The fields of `EnergyPolicy` that are used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether unheld GPUs rest.
    pub rest: bool,
    /// How long a GPU must be unheld before it rests.
    pub rest_after: Duration,
    /// How long all GPUs stay awake after a wake request.
    pub awake_for: Duration,
    /// Whether pods' power limits are set.
    pub limits: bool,
    /// Whether a GPU rests although a process outside any pod has a context on it.
    pub rest_parked: bool,
}

/// The fields of `GpuNode.spec` that are used here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredSettings {
    /// Generation of the spec.
    pub generation: i64,
    /// `spec.wakeGeneration`.
    pub wake: i64,
    /// Power limit by pod, W.
    pub limits: BTreeMap<String, u32>,
}

/// Input of a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The GPUs.
    pub gpus: BTreeMap<Uuid, GpuObservation>,
    /// Desired settings from the operator; `None` while there is no GpuNode.
    pub desired: Option<DesiredSettings>,
    /// The administrator's policy.
    pub policy: Policy,
    /// Whether the leader Lease was renewed recently.
    pub leader_alive: bool,
}

/// State carried from one decision to the next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// GPUs that rest by the last decision.
    resting: BTreeSet<Uuid>,
    /// Time since which each GPU has been unused.
    unused_since: BTreeMap<Uuid, Duration>,
    /// Pods with a limit that have held a GPU.
    came: BTreeSet<String>,
    /// The last value of `spec.wakeGeneration` that was seen.
    wake: Option<i64>,
    /// When that value was first seen. No GPU rests for the policy's wake time after it.
    woken_at: Duration,
}

/// Output of a decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Settings by GPU. GPUs not listed keep, or get back, their original settings.
    pub wanted: BTreeMap<Uuid, Setting>,
    /// GPUs among them that rest.
    pub resting: BTreeSet<Uuid>,
    /// Generation and wake that this decision carries out.
    pub carries_out: Option<(i64, i64)>,
}

/// Computes the decision. `now` is from any monotonic clock.
#[must_use]
pub fn decide(memory: Memory, observed: &Observed, now: Duration) -> (Memory, Decision) {
    let policy = &observed.policy;
    let mut memory = memory;
    memory.unused_since.retain(|uuid, _| observed.gpus.contains_key(uuid));
    if let Some(desired) = &observed.desired {
        // Also after a restart: an earlier wake request may be for a pod that is still to come.
        if memory.wake != Some(desired.wake) {
            memory.wake = Some(desired.wake);
            memory.woken_at = now;
        }
    }
    let carries_out = observed.desired.as_ref().map(|desired| (desired.generation, desired.wake));
    let mut decision = Decision { carries_out, ..Decision::default() };
    let limits = || observed.desired.iter().flat_map(|desired| &desired.limits);
    let is_there = |pod: &String| observed.gpus.values().any(|gpu| gpu.holder == Holder::Pod(pod.clone()));
    // The limit of a pod that has left is there until the operator has seen that.
    memory.came = limits()
        .map(|(pod, _)| pod)
        .filter(|pod| is_there(pod) || memory.came.contains(*pod))
        .cloned()
        .collect();
    let to_come = limits().filter(|(pod, _)| !memory.came.contains(*pod)).map(|(_, watts)| *watts).min();
    for (uuid, gpu) in &observed.gpus {
        let unused = gpu.holder == Holder::Nobody && (gpu.processes == Some(0) || policy.rest_parked);
        if !unused {
            memory.unused_since.remove(uuid);
        } else {
            memory.unused_since.entry(uuid.clone()).or_insert(now);
        }
        let (Some(desired), true) = (&observed.desired, observed.leader_alive) else { continue };
        let Some(facts) = &gpu.facts else { continue };
        let since = memory.unused_since.get(uuid);
        let rests = policy.rest
            && !gpu.rest_useless
            // What rests by our setting looks like a GPU that needs none.
            && (!gpu.at_rest || memory.resting.contains(uuid))
            && now.saturating_sub(memory.woken_at) >= policy.awake_for
            && since.is_some_and(|since| now.saturating_sub(*since) >= policy.rest_after);
        let setting = match &gpu.holder {
            Holder::Pod(pod) if policy.limits => limit(desired.limits.get(pod).copied(), facts),
            Holder::Nobody if policy.limits && gpu.healthy && to_come.is_some() => limit(to_come, facts),
            Holder::Nobody if rests && gpu.healthy => {
                decision.resting.insert(uuid.clone());
                rest(facts)
            }
            _ => Setting::default(),
        };
        if setting.is_default() {
            decision.resting.remove(uuid);
            continue;
        }
        decision.wanted.insert(uuid.clone(), setting);
    }
    memory.resting.clone_from(&decision.resting);
    (memory, decision)
}

fn limit(watts: Option<u32>, facts: &Facts) -> Setting {
    let (Some(watts), Some((lowest, highest))) = (watts, facts.limit_mw) else {
        return Setting::default();
    };
    let limit = watts.saturating_mul(1000).max(lowest);
    Setting { limit_mw: Some(limit).filter(|limit| *limit < highest), clock_mhz: None }
}

fn rest(facts: &Facts) -> Setting {
    match (facts.clock_mhz, facts.limit_mw) {
        (Some((lowest, _)), _) => Setting { clock_mhz: Some(lowest), limit_mw: None },
        (None, Some((lowest, highest))) if lowest < highest => {
            Setting { limit_mw: Some(lowest), clock_mhz: None }
        }
        _ => Setting::default(),
    }
}

/// Whether a GPU without settings of ours draws its bare idle, as far as its rest could change that: its SM clock is in the lowest fifth
/// of the range above the clock of its rest, or its draw not above the limit of its rest. A reading that is missing counts as
/// such: in doubt nothing is set.
#[must_use]
pub fn is_at_rest(facts: &Facts, sample: &Sample) -> bool {
    match (rest(facts), facts.clock_mhz) {
        (Setting { clock_mhz: Some(lowest), .. }, Some((_, highest))) => {
            let low = lowest + highest.saturating_sub(lowest) / 5;
            sample.clock_mhz.is_none_or(|clock| clock <= low)
        }
        (Setting { limit_mw: Some(limit), .. }, _) => sample.power_mw.is_none_or(|draw| draw <= limit),
        _ => true,
    }
}

#[cfg(test)]
mod tests;
