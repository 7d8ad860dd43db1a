//! The leader's gauges: a view of the index at each scrape, for [`crate::metrics`].

use std::collections::BTreeMap;

use andreas_api::gpu_node::GpuCondition;
use andreas_api::slim::{SlimNode, SlimTrainingJob};
use andreas_api::{EnergyPolicySpec, Phase, Reason, TrainingJobStatus};
use andreas_cluster::energy::bill::energy_so_far;
use andreas_cluster::energy::{Exclusion, Inventory, NodeUse, budget};
use andreas_cluster::index::{Amounts, ClusterIndex, agent_status, reporting_agent, usable, whole_gpus};
use andreas_cluster::instants;
use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;
use kube::ResourceExt;

use crate::metrics::state::{RISKS, STATES, View, default_reason};
use crate::metrics::totals::{Attempt, MAX_TYPES, OTHER};

/// What the leader sees now.
pub fn view(index: &ClusterIndex, now: Timestamp) -> View {
    let inventory = Inventory::from_index(index);
    let policy = inventory.policy();
    let mut view = View { currency: policy.currency.clone(), ..View::default() };
    let mut held: BTreeMap<&str, Held> = BTreeMap::new();
    for (key, job) in index.jobs().iter() {
        add_job(&mut view, index, key, job, policy, now);
        let Some(status) = &job.status else { continue };
        for node in status.allocation.iter().flat_map(|allocation| &allocation.nodes) {
            held.entry(node).or_default().add(status);
        }
    }
    for (key, node) in index.nodes().iter() {
        let held = held.get(key.name.as_str()).map_or(0, Held::gpus);
        add_node(&mut view, index, key, node, held, &inventory);
    }
    view.draw = budget::draw(&inventory, now).whole;
    view
}

/// GPUs of a node in allocations.
#[derive(Default)]
struct Held {
    used: u64,
    /// Of jobs that are stopping.
    leaving: u64,
    /// Of jobs that wait until others have released theirs.
    promised: u64,
}

impl Held {
    fn add(&mut self, status: &TrainingJobStatus) {
        let each = status.allocation.as_ref().map_or(0, |allocation| allocation.gpus_per_worker);
        let each = u64::try_from(each).unwrap_or(0);
        let waits = status.reason.as_deref() == Some(Reason::WaitingForRelease.as_str());
        match status.phase {
            Phase::Stopping => self.leaving += each,
            Phase::Starting if waits => self.promised += each,
            _ => self.used += each,
        }
    }

    /// GPUs that are held. Those that one job gives up and the next one waits for count once.
    fn gpus(&self) -> u64 {
        self.used + self.leaving.max(self.promised)
    }
}

fn add_job(
    view: &mut View,
    index: &ClusterIndex,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    policy: &EnergyPolicySpec,
    now: Timestamp,
) {
    let unwritten = TrainingJobStatus::default();
    let status = job.status.as_ref().unwrap_or(&unwritten);
    let reason = match (status.phase, status.reason.as_deref()) {
        (Phase::Pending, None) => Reason::NotPlannedYet,
        (phase, None) => default_reason(phase),
        (_, Some(reason)) => Reason::parse(reason).unwrap_or(Reason::Invalid),
    };
    *view.jobs.entry((status.phase, reason)).or_default() += 1;
    if status.phase.is_terminal() {
        return;
    }
    if !view.namespaces.contains(&key.namespace) {
        view.namespaces.insert(key.namespace.clone());
    }
    let created = job.metadata.creation_timestamp.as_ref();
    let due = instants::deadline(&job.spec, created).map(|due| due.0);
    let late = due.map_or(0.0, |due| instants::since(due, now).0);
    let predicted = status.prediction.as_ref().map(|prediction| prediction.risk.as_str());
    let risk = if late > 0.0 { Some("Late") } else { predicted };
    let risk = risk.and_then(|risk| RISKS.into_iter().find(|known| *known == risk));
    *view.risks.entry(risk.unwrap_or("Unknown")).or_default() += 1;
    if status.phase == Phase::Pending {
        let stopped = status.history.last().map(|record| record.ended.0);
        let since = stopped.or(created.map(|created| created.0));
        view.oldest_waiting =
            since.map_or(0.0, |since| instants::since(since, now).0).max(view.oldest_waiting);
    }
    if let Some(allocation) = &status.allocation {
        view.held_back += u64::from(allocation.guard_reached && allocation.guard_watts.is_some());
        let attempt = Attempt {
            uid: job.uid().unwrap_or_default(),
            attempt: allocation.attempt,
            namespace: key.namespace.clone(),
            gpu_type: allocation.gpu_type.clone(),
            started: allocation.running_time.as_ref().map(|time| time.0),
        };
        view.running.push((attempt, energy_so_far(index, job, policy, now)));
    }
}

fn add_node(
    view: &mut View,
    index: &ClusterIndex,
    key: &ObjectKey,
    node: &SlimNode,
    held: u64,
    inventory: &Inventory<'_>,
) {
    let of_node = inventory.node_use(node);
    let open = of_node.planned().is_some() && usable(index, key, node);
    view.usable_nodes += u64::from(open);
    // A node that may be off has no agent that could be missed.
    let powered = inventory.powered(node).is_some();
    view.without_agent += u64::from(powered && reporting_agent(index, key).is_none());
    if let Some(why) = of_node.exclusion() {
        *view.excluded.entry(why.as_str()).or_default() += 1;
    }
    let ours = !matches!(of_node, NodeUse::NoGpus | NodeUse::Excluded(Exclusion::NotSelected));
    let Some(product) = inventory.gpu_type(node).filter(|_| ours || held > 0) else { return };
    let known = view.gpus.contains_key(product) || view.gpus.len() < MAX_TYPES;
    let name = if known { product } else { OTHER };
    let counts = view.gpus.entry(name.to_owned()).or_default();
    let offered = Amounts::from_resources(&node.status.allocatable).gpus;
    // The device plug-in takes unhealthy GPUs out. While it starts again it offers none, which says nothing of them.
    let taken_out = if offered > 0 { whole_gpus(node).saturating_sub(offered) } else { 0 };
    let mut left = (offered + taken_out).max(held);
    let agent = agent_status(index, key).map(|status| status.gpus.as_slice()).unwrap_or_default();
    let foreign = index.foreign_use(&key.name).gpus;
    // Those that a pod holds count as held, also where the plug-in has taken them out.
    let (of_holders, unhealthy): (Vec<_>, Vec<_>) =
        agent.iter().filter(|gpu| gpu.state == GpuCondition::Unhealthy).partition(|gpu| gpu.holder.is_some());
    let taken_out = taken_out.saturating_sub((of_holders.len() as u64).min(held + foreign));
    let resting = agent.iter().filter(|gpu| open && gpu.state == GpuCondition::Resting).count();
    let rest = if open { "free" } else { "unavailable" };
    for (state, wanted) in [
        ("held", held),
        ("foreign", foreign),
        ("unhealthy", (unhealthy.len() as u64).max(taken_out)),
        ("resting", resting as u64),
        (rest, u64::MAX),
    ] {
        let taken = wanted.min(left);
        left -= taken;
        if let Some(at) = STATES.iter().position(|known| *known == state) {
            counts[at] += taken;
        }
    }
}

#[cfg(test)]
mod tests;
