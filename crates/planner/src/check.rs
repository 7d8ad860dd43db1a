//! Validation of the numbers and names of a snapshot; all later code relies on it.
//!
//! Magnitudes are limited to 1e15 for times, watts and weights, so that sums and products stay finite.

use std::collections::BTreeSet;
use std::fmt::Display;

use crate::error::SnapshotError;
use crate::snapshot::{
    Estimate, Job, JobState, LimitEffect, MultiNodeEffect, Node, NodePower, Placement, PowerBudget, Snapshot,
};

/// Maximum magnitude of a number.
const LARGE: f64 = 1e15;
/// Maximum number of jobs of a snapshot.
pub const MAX_JOBS: usize = 200_000;
/// Maximum number of nodes.
const MAX_NODES: usize = 100_000;
/// Maximum number of GPU types of the nodes: each is at least one class of nodes, and a set of classes is a `u128`.
pub(crate) const MAX_TYPES: usize = 128;
/// Maximum GPUs of a node.
const MAX_GPUS: u32 = 1024;
/// Up to this number, rows are compared pairwise.
const MAX_PAIRWISE_ROWS: usize = 64;
/// Maximum nodes of a gang.
const MAX_GANG: u32 = 4096;

type Check = Result<(), SnapshotError>;

fn bad(field: impl Into<String>, problem: impl Into<String>) -> Check {
    Err(SnapshotError::new(field, problem))
}

fn within(value: f64, low: f64, high: f64, field: impl FnOnce() -> String) -> Check {
    if value >= low && value <= high {
        return Ok(());
    }
    bad(field(), format!("{value} is not between {low} and {high}"))
}

fn not_negative(value: f64, field: impl FnOnce() -> String) -> Check {
    within(value, 0.0, LARGE, field)
}

fn positive(value: f64, field: impl FnOnce() -> String) -> Check {
    if value > 0.0 && value <= LARGE {
        return Ok(());
    }
    bad(field(), format!("{value} is not greater than 0 and at most {LARGE}"))
}

fn instant(value: f64, field: impl FnOnce() -> String) -> Check {
    within(value, -LARGE, LARGE, field)
}

fn unique<'a, T: Ord + Display + 'a>(names: impl Iterator<Item = &'a T>, field: &str) -> Check {
    let mut names: Vec<&T> = names.collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => bad(format!("{field}[{}]", pair[0]), "is there twice"),
        None => Ok(()),
    }
}

impl Snapshot {
    /// Checks whether the snapshot can be planned. [`plan`](crate::plan) calls it.
    ///
    /// Jobs may name nodes that are not in `nodes`: a node may vanish while jobs still hold it.
    ///
    /// # Errors
    /// [`SnapshotError`] with the path of the first invalid field.
    pub fn check(&self) -> Check {
        instant(self.now.0, || "now".into())?;
        self.tariff.check().or_else(|e| bad("tariff", e.to_string()))?;
        for (i, (from, price)) in self.tariff.windows().iter().enumerate() {
            instant(from.0, || format!("tariff[{i}]"))?;
            not_negative(price.0, || format!("tariff[{i}]"))?;
        }
        if let Some(budget) = &self.budget {
            check_budget(budget)?;
        }
        not_negative(self.lateness.turnaround_share, || "lateness.turnaround_share".into())?;
        not_negative(self.lateness.late_fixed.0, || "lateness.late_fixed".into())?;
        if let Some(aging) = self.lateness.aging {
            positive(aging.0, || "lateness.aging".into())?;
        }
        not_negative(self.restart.0, || "restart".into())?;
        not_negative(self.wear.0, || "wear".into())?;
        if self.jobs.len() > MAX_JOBS {
            return bad("jobs", format!("{} are more than {MAX_JOBS}", self.jobs.len()));
        }
        if self.nodes.len() > MAX_NODES {
            return bad("nodes", format!("{} are more than {MAX_NODES}", self.nodes.len()));
        }
        unique(self.gpu_types.iter().map(|t| &t.name), "gpu_types")?;
        unique(self.nodes.iter().map(|n| &n.name), "nodes")?;
        unique(self.namespaces.iter().map(|n| &n.name), "namespaces")?;
        unique(self.jobs.iter().map(|j| &j.id), "jobs")?;
        for kind in &self.gpu_types {
            not_negative(kind.idle.0, || format!("gpu_types[{}].idle", kind.name))?;
            within(kind.max.0, kind.idle.0, LARGE, || format!("gpu_types[{}].max", kind.name))?;
        }
        let types: BTreeSet<_> = self.gpu_types.iter().map(|t| &t.name).collect();
        for node in &self.nodes {
            if !types.contains(&node.gpu_type) {
                return bad(
                    format!("nodes[{}].gpu_type", node.name),
                    format!("{} is not in gpu_types", node.gpu_type),
                );
            }
            check_node(node)?;
        }
        let used: BTreeSet<_> = self.nodes.iter().map(|node| &node.gpu_type).collect();
        if used.len() > MAX_TYPES {
            return bad("nodes", format!("{} GPU types are more than {MAX_TYPES}", used.len()));
        }
        if self.intended.len() > MAX_JOBS {
            return bad("intended", format!("{} are more than {MAX_JOBS}", self.intended.len()));
        }
        for (i, change) in self.intended.iter().enumerate() {
            instant(change.at.0, || format!("intended[{i}].at"))?;
        }
        self.jobs.iter().try_for_each(check_job)
    }
}

fn check_budget(budget: &PowerBudget) -> Check {
    budget.watts.check().or_else(|e| bad("budget.watts", e.to_string()))?;
    for (i, (from, watts)) in budget.watts.windows().iter().enumerate() {
        instant(from.0, || format!("budget.watts[{i}]"))?;
        not_negative(watts.0, || format!("budget.watts[{i}]"))?;
    }
    if !(budget.margin >= 0.0 && budget.margin < 1.0) {
        return bad("budget.margin", format!("{} is not at least 0 and below 1", budget.margin));
    }
    within(budget.scope_factor, 1.0, LARGE, || "budget.scope_factor".into())
}

fn check_node(node: &Node) -> Check {
    let at = |what: &str| format!("nodes[{}].{what}", node.name);
    if node.gpus.0 > MAX_GPUS {
        return bad(at("gpus"), format!("{} are more than {MAX_GPUS}", node.gpus));
    }
    if node.free_gpus > node.gpus {
        return bad(at("free_gpus"), format!("{} are more than the node's {}", node.free_gpus, node.gpus));
    }
    not_negative(node.host_idle.0, || at("host_idle"))?;
    not_negative(node.host_busy.0, || at("host_busy"))?;
    if let Some(sleep) = &node.sleep {
        not_negative(sleep.wake.0, || at("sleep.wake"))?;
        not_negative(sleep.wake_energy.0, || at("sleep.wake_energy"))?;
        if let NodePower::Waking { until } = sleep.state {
            instant(until.0, || at("sleep.state.until"))?;
        }
    }
    node.foreign_power.map_or(Ok(()), |watts| not_negative(watts.0, || at("foreign_power")))
}

fn check_job(job: &Job) -> Check {
    let at = |what: &str| format!("jobs[{}].{what}", job.id);
    instant(job.submit.0, || at("submit"))?;
    if let Some(deadline) = job.deadline {
        instant(deadline.0, || at("deadline"))?;
    }
    not_negative(job.weight.0, || at("weight"))?;
    positive(job.epochs_left, || at("epochs_left"))?;
    not_negative(job.grace.0, || at("grace"))?;
    not_negative(job.min_run.0, || at("min_run"))?;
    not_negative(job.lost.0, || at("lost"))?;
    not_negative(job.usually_lost.map_or(0.0, |usual| usual.0), || at("usually_lost"))?;
    if let Some(unknown) = &job.unknown {
        not_negative(unknown.shape, || at("unknown.shape"))?;
        not_negative(unknown.first_report.0, || at("unknown.first_report"))?;
    }
    job.restart.map_or(Ok(()), |restart| not_negative(restart.0, || at("restart")))?;
    let mut rows = BTreeSet::new();
    let few = job.estimates.len() <= MAX_PAIRWISE_ROWS;
    for (i, row) in job.estimates.iter().enumerate() {
        check_estimate(row, &|what| at(&format!("estimates[{i}].{what}")))?;
        let same = |other: &Estimate| other.gpus == row.gpus && other.gpu_type == row.gpu_type;
        let twice =
            if few { job.estimates[..i].iter().any(same) } else { !rows.insert((&row.gpu_type, row.gpus)) };
        if twice {
            return bad(at(&format!("estimates[{i}]")), "its type and number of GPUs are there twice");
        }
    }
    let mut spans = BTreeSet::new();
    for (i, MultiNodeEffect { nodes, time_factor }) in job.spread.iter().enumerate() {
        if *nodes < 2 || *nodes > MAX_GANG || !spans.insert(*nodes) {
            return bad(
                at(&format!("spread[{i}].nodes")),
                format!("{nodes} is below 2, too large or there twice"),
            );
        }
        positive(*time_factor, || at(&format!("spread[{i}].time_factor")))?;
    }
    for (i, LimitEffect { limit, time_factor, power_factor, .. }) in job.limits.iter().enumerate() {
        positive(limit.0, || at(&format!("limits[{i}].limit")))?;
        positive(*time_factor, || at(&format!("limits[{i}].time_factor")))?;
        not_negative(*power_factor, || at(&format!("limits[{i}].power_factor")))?;
    }
    match &job.state {
        JobState::Waiting => Ok(()),
        JobState::Starting { target, since } => {
            instant(since.0, || at("state.since"))?;
            check_placement(target, &|what| at(&format!("state.target.{what}")))
        }
        JobState::Running { placement, since } => {
            instant(since.0, || at("state.since"))?;
            check_placement(placement, &|what| at(&format!("state.placement.{what}")))
        }
        JobState::Stopping { holds, target, gone_by } => {
            instant(gone_by.0, || at("state.gone_by"))?;
            check_placement(holds, &|what| at(&format!("state.holds.{what}")))?;
            target
                .as_ref()
                .map_or(Ok(()), |t| check_placement(t, &|what| at(&format!("state.target.{what}"))))
        }
    }
}

fn check_estimate(row: &Estimate, at: &dyn Fn(&str) -> String) -> Check {
    if row.gpus.0 == 0 || row.gpus.0 > MAX_GPUS * MAX_GANG {
        return bad(at("gpus"), format!("{} is out of range", row.gpus));
    }
    positive(row.epoch.0, || at("epoch"))?;
    not_negative(row.power.0, || at("power"))?;
    row.draw.map_or(Ok(()), |draw| not_negative(draw.0, || at("draw")))?;
    within(row.rel_std, 0.0, 10.0, || at("rel_std"))
}

fn check_placement(place: &Placement, at: &dyn Fn(&str) -> String) -> Check {
    if place.nodes.is_empty() || place.nodes.len() > MAX_GANG as usize {
        return bad(at("nodes"), format!("{} nodes are out of range", place.nodes.len()));
    }
    if place.nodes.iter().collect::<BTreeSet<_>>().len() < place.nodes.len() {
        return bad(at("nodes"), "a node is there twice");
    }
    if place.gpus_per_node.0 == 0 || place.gpus_per_node.0 > MAX_GPUS {
        return bad(at("gpus_per_node"), format!("{} is out of range", place.gpus_per_node));
    }
    place.limit.map_or(Ok(()), |limit| positive(limit.0, || at("limit")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{MethodName, Options, plan};

    #[test]
    fn nodes_of_as_many_types_as_there_are_classes_are_planned_and_of_more_refused() {
        let nodes_of = |types: usize| -> Snapshot {
            let name = |i: usize| format!("type-{i}");
            let info = |i: usize| json!({"name": name(i), "idle": 50.0, "max": 400.0});
            let node = |i: usize| json!({"name": format!("n{i}"), "gpu_type": name(i), "gpus": 8, "free_gpus": 8, "free": {}});
            serde_json::from_value(json!({
                "now": 1e6, "tariff": [[0.0, 1e-7]], "lateness": {"turnaround_share": 0.1, "aging": 3600.0},
                "gpu_types": (0..types).map(info).collect::<Vec<_>>(), "nodes": (0..types).map(node).collect::<Vec<_>>(),
                "namespaces": [], "jobs": []}))
            .expect("a snapshot")
        };
        for method in MethodName::ALL {
            let options = Options { method, ..Options::default() };
            plan(&nodes_of(MAX_TYPES), &options).expect("a plan");
            let error = plan(&nodes_of(MAX_TYPES + 1), &options).expect_err("too many types");
            assert_eq!(error.field, "nodes", "{method}");
        }
    }
}
