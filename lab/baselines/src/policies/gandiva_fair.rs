//! Gandiva_fair (Chaudhary et al., EuroSys 2020): equal tickets give equal GPU time, whatever the number of
//! jobs.

use std::collections::BTreeMap;

use andreas_model::{GpuType, NamespaceName, Seconds};
use andreas_planner::policy::Instance;

use super::ranking::{Preference, ROUND, Ranking, View};
use crate::candidates;
use crate::memory::Memory;

/// Gang-aware stride scheduling by namespace, for each GPU type separately. Each round serves the namespace
/// with the fewest GPU-seconds per ticket first, and in it the job with the fewest. A job that does not fit
/// is skipped and keeps its turn. A returning namespace starts with the minimum of the present ones, so it
/// cannot save up time. The user chooses the number of GPUs.
///
/// Differences: the code is not public; the mechanism is from summaries of the paper. The fastest type is
/// allocated first, and a job uses one type per round. Central and local servers are one here. *Trading* of
/// fast GPUs for more slow ones between users is left out. It changes which type a user gains from, not the
/// share of the whole.
pub(super) struct GandivaFair;

/// Starts a new namespace at the minimum of the present ones, by type.
fn add_new_namespaces(instance: &Instance<'_>, memory: &mut Memory) {
    let mut least: BTreeMap<GpuType, Seconds> = BTreeMap::new();
    for had in memory.namespaces.values() {
        for kind in &instance.types {
            let had = had.get(&kind.name).copied().unwrap_or_default();
            least.entry(kind.name.clone()).and_modify(|l| *l = l.min(had)).or_insert(had);
        }
    }
    for data in &instance.jobs {
        memory.namespaces.entry(data.job.namespace.clone()).or_insert_with(|| least.clone());
    }
}

impl Ranking for GandivaFair {
    fn prepare(&self, instance: &Instance<'_>, memory: &mut Memory) {
        add_new_namespaces(instance, memory);
    }

    fn preferences(&self, view: &View<'_, '_>) -> Vec<Preference> {
        let instance = view.instance;
        let mut partial = view.base.clone();
        let mut preferences = Vec::new();
        for kind in by_speed(instance) {
            let name = &instance.types[kind].name;
            let mut users: BTreeMap<&NamespaceName, User> = BTreeMap::new();
            for job in view.unassigned_jobs().filter(|job| partial.assignments[*job].is_none()) {
                let namespace = &instance.jobs[job].job.namespace;
                let had = view.memory.namespaces.get(namespace).and_then(|had| had.get(name));
                users
                    .entry(namespace)
                    .or_insert_with(|| User { pass: had.map_or(0.0, |had| had.0), jobs: Vec::new() })
                    .jobs
                    .push(job);
            }
            // Immovable jobs are already served.
            for (job, assignment) in view.base.assignments.iter().enumerate() {
                let Some(config) = assignment.as_ref().map(|s| view.config(job, s.config)) else { continue };
                let namespace = &instance.jobs[job].job.namespace;
                if let Some(user) = users.get_mut(namespace).filter(|_| config.kind == kind) {
                    user.pass += config.total_gpus() as f64 * ROUND.0 / view.tickets.for_namespace(namespace);
                }
            }
            for user in users.values_mut() {
                // The last element is served first.
                let had = |job: usize| view.memory.job(instance, job).map_or(0.0, |m| m.service.0);
                let submit = |job: usize| instance.jobs[job].job.submit;
                user.jobs.sort_by(|&a, &b| {
                    had(b).total_cmp(&had(a)).then(submit(b).total_cmp(&submit(a))).then(b.cmp(&a))
                });
            }
            while let Some(namespace) = next(&users) {
                let Some(user) = users.get_mut(namespace) else { break };
                let Some(job) = user.jobs.pop() else { break };
                let Some(config) = requested_config(instance, job, kind) else { continue };
                let here = view.current[job]
                    .clone()
                    .filter(|here| view.config(job, config).same_hardware(view.config(job, here.config)));
                let placed = here
                    .is_some_and(|assignment| partial.try_put(instance, job, assignment).is_ok())
                    || partial.place_first(instance, job, &[config]);
                if placed {
                    let gpus = view.config(job, config).total_gpus() as f64;
                    user.pass += gpus * ROUND.0 / view.tickets.for_namespace(namespace);
                    preferences.push(Preference { job, configs: vec![config] });
                }
            }
        }
        preferences
    }
}

struct User {
    /// GPU-seconds per ticket.
    pass: f64,
    jobs: Vec<usize>,
}

/// The namespace with the smallest pass that has an untried job.
fn next<'a>(users: &BTreeMap<&'a NamespaceName, User>) -> Option<&'a NamespaceName> {
    users
        .iter()
        .filter(|(_, user)| !user.jobs.is_empty())
        .min_by(|a, b| a.1.pass.total_cmp(&b.1.pass).then(a.0.cmp(b.0)))
        .map(|(namespace, _)| *namespace)
}

/// The requested GPUs on a type.
fn requested_config(instance: &Instance<'_>, job: usize, kind: usize) -> Option<usize> {
    let configs = &instance.jobs[job].configs;
    candidates::fixed(instance, job).into_iter().find(|c| configs[*c].kind == kind)
}

/// GPU types, fastest first.
fn by_speed(instance: &Instance<'_>) -> Vec<usize> {
    let slowness = |kind: usize| {
        let relative = instance.jobs.iter().filter_map(|data| {
            let times = || data.configs.iter().filter(|c| c.listed && c.total_gpus() > 0);
            let of_kind = times().filter(|c| c.kind == kind).map(|c| c.time).reduce(f64::min)?;
            let best = times().map(|c| c.time).reduce(f64::min)?;
            (best > 0.0).then_some(of_kind / best)
        });
        let (sum, count) = relative.fold((0.0, 0.0), |(sum, count), r| (sum + r, count + 1.0));
        if count > 0.0 { sum / count } else { f64::INFINITY }
    };
    let mut kinds: Vec<(f64, usize)> = (0..instance.types.len()).map(|k| (slowness(k), k)).collect();
    kinds.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    kinds.into_iter().map(|(_, kind)| kind).collect()
}
