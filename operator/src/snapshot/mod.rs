//! Builds the planner's Snapshot: a pure function of the index, the claims and the instant.
//!
//! **In**: [`ClusterIndex`], [`Ledger`] (claims, statuses being written), predictions ([`Tables`]), the
//! instant. **Out**: [`Built`]: the Snapshot, the state of each job that it was made from (decisions for
//! another state are not carried out), and the excluded nodes.
//!
//! Decided here and not by the planner:
//!
//! * which waiting jobs take part ([`places`]), by their number of [`configurations`];
//! * which planned nodes are usable ([`nodes`]), and which admit a job's worker ([`admits`]);
//! * use by foreign pods and by our leftovers, and free quota ([`quota`]);
//! * where the energy policy and the predictions enter: power limits, prices ([`jobs`]);
//! * the work lost by a stop ([`lost`]).
//!
//! What outlives a plan is in [`Caches`].
//!
//! **Never here**: I/O, policy.

mod admissions;
mod admits;
mod configurations;
pub mod holders;
pub mod jobs;
mod lost;
pub mod nodes;
pub mod places;
mod quota;
mod restarts;
#[cfg(test)]
mod tests;
mod volumes;
pub mod worker;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::Allocation;
use andreas_api::{Phase, TrainingJobStatus};
use andreas_cluster::energy::{Inventory, draws, inventory};
use andreas_cluster::index::ClusterIndex;
use andreas_cluster::policy::rules;
use andreas_lifecycle::{Admitted, Claim};
use andreas_model::{GpuCount, GpuType, JobId, NamespaceName, NodeName, Time, TypeDraw};
use andreas_planner::{GpuTypeInfo, Namespace, Prices, Snapshot};
use andreas_predictor::mean_over_median;
use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;

use crate::ledger::Ledger;
use crate::predict::outlook::{Outlook, outlook};
use crate::predict::{Table, Tables};
use admissions::Admissions;
use holders::{Holders, Holding};
use volumes::Volumes;
use workers::Workers;

pub use volumes::single_node_claim;

/// The state of a job that a plan knows: what it decides is for no other one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobBasis {
    /// The job's UID.
    pub uid: String,
    /// Its `status.decisions`.
    pub decisions: i64,
}

impl JobBasis {
    fn new(job: &SlimTrainingJob, status: Option<&TrainingJobStatus>) -> Self {
        Self {
            uid: job.metadata.uid.clone().unwrap_or_default(),
            decisions: status.and_then(|status| status.decisions).unwrap_or(0),
        }
    }
}

/// A Snapshot and its inputs.
pub struct Built {
    /// For the planner.
    pub snapshot: Snapshot,
    /// State of each job in the snapshot.
    pub basis: BTreeMap<ObjectKey, JobBasis>,
    /// Waiting jobs outside the snapshot.
    pub queued: Vec<(ObjectKey, JobBasis, places::Queued)>,
    /// Predictions for every job that has not ended.
    pub expected: BTreeMap<ObjectKey, Expected>,
    /// Earliest end of a backoff: the time of the next plan.
    pub not_before: Option<Timestamp>,
    /// Human-readable text: GPU nodes that are not planned, and why; `None` if there are none.
    pub excluded: Option<String>,
    /// What was seen of the runs that there are, until now.
    pub draws: draws::MeasuredDraws,
    /// Measured draw of one GPU of runs, W.
    pub measured: BTreeMap<ObjectKey, f64>,
    /// What GPUs of each type count for.
    pub types: BTreeMap<GpuType, TypeDraw>,
}

/// What is kept between plans; all of it can be lost.
#[derive(Default)]
pub struct Caches {
    tables: Tables,
    workers: Workers,
    admissions: Admissions,
    /// Observed draw of runs.
    pub draws: draws::MeasuredDraws,
}

impl Caches {
    /// Empty caches that predict with these tables.
    pub fn new(tables: Tables) -> Self {
        Self { tables, ..Self::default() }
    }
}

/// Predictions for one job.
pub struct Expected {
    /// Its predictions.
    pub table: Arc<Table>,
    /// Its progress and pace in the snapshot.
    pub outlook: Outlook,
}

/// The planner's ID of a job.
pub fn job_id(key: &ObjectKey) -> JobId {
    JobId::new(format!("{}/{}", key.namespace, key.name))
}

/// The job of a planner's ID.
pub fn job_key(id: &JobId) -> Option<ObjectKey> {
    let (namespace, name) = id.as_str().split_once('/')?;
    Some(ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() })
}

/// A time that differs by more than this part from the table's corrects the predictions of all configurations.
const OFF: f64 = 0.05;

/// Whether a run's pace changes its table: its time differs, or is known so much better that the mean, which plans count with,
/// differs. A pace close to the prediction keeps its table: no change for one per cent.
fn pace_is_news(table: &Table, allocation: Option<&Allocation>, outlook: &Outlook) -> bool {
    let held = allocation.and_then(|held| table.row(&held.gpu_type, u32::try_from(held.gpus).ok()?));
    let mean = held.map_or(1.0, |(row, _)| {
        mean_over_median(row.rel_std) / mean_over_median(outlook.epoch.sigma.min(row.rel_std))
    });
    (outlook.pace_factor - 1.0).abs() > OFF || mean - 1.0 > OFF
}

/// Since when a job has an allocation that nothing stops. `None` if it has none.
fn allocated_since(status: &TrainingJobStatus) -> Option<Timestamp> {
    let holds = matches!(status.phase, Phase::Starting | Phase::Running) && status.stop.is_none();
    status.allocation.as_ref().filter(|_| holds).map(|allocation| allocation.since.0)
}

/// What each job holds: by the status being written, else by the last observed one.
fn claims_of<'a>(index: &'a ClusterIndex, ledger: &Ledger) -> BTreeMap<&'a ObjectKey, (Claim, Holding)> {
    let mut claims = BTreeMap::new();
    for (key, job) in index.jobs().iter() {
        let Some(memory) = ledger.get(key).filter(|memory| Some(memory.uid()) == job.metadata.uid.as_deref())
        else {
            continue;
        };
        let Some(claim) = memory.claim() else { continue };
        let status = memory.pending().or(job.status.as_ref());
        let claim = match status.and_then(allocated_since) {
            // A write without an answer: the last step did not see it.
            Some(since) if matches!(claim, Claim::Waiting { .. }) => Claim::Starting { since },
            _ => claim.clone(),
        };
        let holding = Holding {
            allocation: status.and_then(|status| status.allocation.clone()),
            target: memory.target().cloned(),
            promised: memory.target().is_some() && !memory.is_starting(),
        };
        claims.insert(key, (claim, holding));
    }
    claims
}

/// Measured draw of one GPU, W, and its type, by job: it counts for other jobs too.
fn measured_runs(
    claims: &BTreeMap<&ObjectKey, (Claim, Holding)>,
    index: &ClusterIndex,
    seen: &mut draws::MeasuredDraws,
    now: Timestamp,
) -> BTreeMap<ObjectKey, (GpuType, f64)> {
    let measured = claims.iter().filter_map(|(key, (_, holding))| {
        let (job, held) = (index.jobs().get(key)?, holding.allocation.as_ref()?);
        let each = seen.measured(index, key, job, held, now)?;
        Some((ObjectKey::clone(key), (held.gpu_type.as_str().into(), each)))
    });
    measured.collect()
}

/// Builds a snapshot. The tables take the newest model; `prices` are the last plan's.
pub fn build(
    index: &ClusterIndex,
    ledger: &Ledger,
    caches: &mut Caches,
    prices: Option<Prices>,
    now: Timestamp,
) -> Built {
    let Caches { tables, workers, admissions, draws: seen } = caches;
    let inventory = Inventory::from_index(index);
    let policy = inventory.policy();
    let second = now.as_second();
    let claims = claims_of(index, ledger);

    let holders = holders::holders(&claims, index);
    let mut cluster = nodes::gather(index, &inventory, &holders, now);
    let measured = measured_runs(&claims, index, seen, now);
    let by_type: Vec<(&str, f64)> =
        measured.values().map(|(gpu_type, each)| (gpu_type.as_str(), *each)).collect();
    draws::fill(index, &inventory, &by_type, &mut cluster.types);
    tables.refresh(index, policy, &cluster.types);

    let waiting = claims.iter().filter_map(|(key, (claim, holding))| {
        let waits = matches!(claim, Claim::Waiting { not_before } if not_before.is_none_or(|at| at <= now));
        let job = index.jobs().get(key).filter(|_| waits && holding.target.is_none())?;
        let made = job.metadata.creation_timestamp.as_ref().map_or(now, |made| made.0);
        let configurations = configurations::configurations(&job.spec.gpus, &cluster.types);
        let admitted = admitted(ledger, key);
        let volumes = Volumes::from_spec(index, &key.namespace, &job.spec, admitted);
        let demands = jobs::demands(&workers.specs_of(job), job, &volumes, admitted, &[]);
        Some(places::Waiting { key, made, configurations, demands })
    });
    let beyond_limits = places::beyond_limits(waiting, cluster.nodes.len(), &places::LIMITS);
    let mut queued = Vec::new();
    let mut basis = BTreeMap::new();
    let mut planned = Vec::new();
    let mut not_before: Option<Timestamp> = None;
    admissions.begin(index, &cluster);
    let lost = lost::LostWork::from_index(index);
    let mut expected = BTreeMap::new();
    for (key, job) in index.jobs().iter() {
        let ended = job.status.as_ref().is_some_and(|status| status.phase.is_terminal());
        if !ended
            && !beyond_limits.contains_key(key)
            && let Some(table) = tables.table_of(index, job, &cluster.types)
        {
            let outlook = outlook(job, ledger.status(index, key), &table, now);
            expected.insert(key.clone(), Expected { table, outlook });
        }
    }
    for (key, (claim, holding)) in &claims {
        if let Claim::Waiting { not_before: Some(at) } = claim
            && *at > now
        {
            not_before = Some(not_before.map_or(*at, |earliest| earliest.min(*at)));
            continue;
        }
        let Some(job) = index.jobs().get(key) else { continue };
        if let Some(place) = beyond_limits.get(key) {
            let status = ledger.status(index, key);
            queued.push(((*key).clone(), JobBasis::new(job, status), *place));
            continue;
        }
        let Some(state) = jobs::state(job, claim, holding, now, &cluster, &holders) else { continue };
        let Some(Expected { table, outlook }) = expected.get(*key) else { continue };
        let specs = workers.specs_of(job);
        let status = ledger.status(index, key);
        let allocation = status.and_then(|status| status.allocation.as_ref());
        let off = outlook.observed.filter(|_| pace_is_news(table, allocation, outlook));
        let corrected = off.and_then(|seen| tables.corrected(index, job, &cluster.types, seen));
        basis.insert((*key).clone(), JobBasis::new(job, status));
        let limits = seen.limits_count(index, key, job, allocation, policy, now);
        let profile = index.profile_key(job);
        planned.push(jobs::job(
            &jobs::JobFacts {
                index,
                policy,
                cluster: &cluster,
                key,
                job,
                promised: holding.promised && matches!(claim, Claim::Waiting { .. }),
                status,
                table,
                corrected: corrected.as_deref(),
                outlook: *outlook,
                specs: &specs,
                lost_epochs: lost.epochs(status, job.spec.epochs, &profile),
                measured: measured.get(*key).map(|(_, each)| *each),
                limits,
                admitted: admitted(ledger, key),
                barred: &jobs::Barred::from_index(index, &profile, job, now),
                service: ledger.get(key).and_then(|memory| memory.admission().service),
                now,
            },
            state,
            admissions,
        ));
    }

    admissions.end();
    workers.end();
    let cluster = cluster.limited(planned.iter().map(|job| &job.worker));
    let namespaces: BTreeSet<&str> = planned.iter().map(|job| job.namespace.as_str()).collect();
    let namespaces = namespaces.into_iter().filter_map(|name| namespace(index, name, &holders)).collect();
    let gpu_types = cluster.types.keys().map(|name| info(name, &inventory)).collect();
    let snapshot = Snapshot {
        now: Time(second as f64),
        tariff: rules::tariff(policy, second),
        budget: rules::budget(policy, second),
        lateness: rules::lateness(policy),
        restart: rules::restart_time(policy),
        wear: rules::restart_wear(policy),
        gpu_types,
        nodes: cluster.planned(),
        namespaces,
        jobs: planned,
        prices,
        intended: Vec::new(),
    };
    Built {
        snapshot,
        basis,
        queued,
        expected,
        not_before,
        excluded: inventory::summary(&cluster.excluded, policy),
        draws: seen.of_runs(index),
        measured: measured.into_iter().map(|(key, (_, each))| (key, each)).collect(),
        types: cluster.types.iter().filter_map(|(name, facts)| Some((name.clone(), facts.draw?))).collect(),
    }
}

/// What admission makes of a job's worker.
fn admitted<'a>(ledger: &'a Ledger, key: &ObjectKey) -> Option<&'a Admitted> {
    ledger.get(key)?.admission().dry_run.as_ref()?.admitted.as_deref()
}

fn info(name: &GpuType, inventory: &Inventory<'_>) -> GpuTypeInfo {
    let board = inventory.board(name.as_str());
    GpuTypeInfo { name: name.clone(), idle: board.idle, max: board.max }
}

/// A namespace's free quota. Used counts everything but what the planner takes off itself: the pods of its jobs.
fn namespace(index: &ClusterIndex, name: &str, holders: &Holders) -> Option<Namespace> {
    let quotas = quota::of_namespace(index, name);
    if quotas.is_empty() {
        return None;
    }
    let mut ours = quota::Amounts::new();
    let pods = index.pods().in_namespace(name).filter(|(_, pod)| holders.accounts_for(pod));
    for (key, amount) in pods.flat_map(|(_, pod)| quota::pod_takes(&quotas, &pod.spec)) {
        let sum = ours.entry(key).or_default();
        *sum = sum.saturating_add(amount);
    }
    let left = quotas.iter().flat_map(|quota| quota::left(quota, &ours)).collect();
    Some(Namespace { name: NamespaceName::new(name), quota: left })
}

fn gpus(count: u64) -> GpuCount {
    GpuCount(u32::try_from(count).unwrap_or(u32::MAX))
}

fn node_name(name: &str) -> NodeName {
    NodeName::new(name)
}
