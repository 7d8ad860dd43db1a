//! Converts one job for the planner.

use std::cell::LazyCell;
use std::sync::Arc;

use andreas_api::EnergyPolicySpec;
use andreas_api::names::LABEL_ARCHITECTURE;
use andreas_api::slim::{SlimNode, SlimPodSpec, SlimTrainingJob};
use andreas_api::training_job::{self, Allocation, AttemptRecord};
use andreas_api::{Outcome, Reason, TrainingJobSpec, TrainingJobStatus, names};
use andreas_cluster::energy::weight::bounded_weight;
use andreas_cluster::energy::{Types, draws};
use andreas_cluster::index::{ClusterIndex, gpu_memory, is_member};
use andreas_cluster::instants;
use andreas_cluster::policy::rules;
use andreas_cluster::profiles;
use andreas_lifecycle::pods;
use andreas_lifecycle::{Admitted, Claim, largest_admitted};
use andreas_model::{GpuCount, GpuType, NamespaceName, NodeName, Seconds, Time, Watts};
use andreas_planner::{
    Estimate, Job, JobState, LimitEffect, LimitsCount, MultiNodeEffect, Placement, Preemption,
    RefusedWorkers, Worker,
};
use andreas_predictor::estimates::{RunFacts, unknown_rule};
use andreas_predictor::mean_over_median;
use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;
use kube::ResourceExt;

use super::admissions::Admissions;
use super::configurations::any_number_of_nodes;
use super::holders::{Holders, Holding};
use super::nodes::Cluster;
use super::volumes::Volumes;
use super::worker::{self, Digest, WorkerSpecs};
use super::{admits, job_id, node_name, restarts};
use crate::predict::{Outlook, Table};

fn placement(allocation: &Allocation) -> Placement {
    Placement {
        gpu_type: allocation.gpu_type.as_str().into(),
        nodes: allocation.nodes.iter().map(|name| node_name(name)).collect(),
        gpus_per_node: GpuCount(u32::try_from(allocation.gpus_per_worker).unwrap_or(0)),
        limit: allocation.power_limit_watts.map(|watts| Watts(f64::from(watts))),
    }
}

fn time(at: Timestamp) -> Time {
    Time(at.as_millisecond() as f64 / 1_000.0)
}

/// The next placement of a stopped job, if it is still possible.
fn target(
    job: &SlimTrainingJob,
    holding: &Holding,
    now: Timestamp,
    cluster: &Cluster,
    holders: &Holders,
) -> Option<(Placement, Timestamp)> {
    let target = holding.target.as_ref()?;
    // The user may have edited the allowed GPUs since, or starting there may have failed.
    let gpus = &job.spec.gpus;
    let total = i32::try_from(target.nodes.len()).ok()?.checked_mul(target.gpus_per_worker)?;
    let excluded =
        job.status.iter().flat_map(|status| &status.excluded_nodes).filter(|excluded| excluded.until.0 > now);
    if !gpus.totals().contains(&total)
        || i64::from(gpus.max_nodes) < i64::try_from(target.nodes.len()).ok()?
        || !gpus.allows_type(&target.gpu_type)
        || excluded.into_iter().any(|excluded| target.nodes.contains(&excluded.node))
    {
        return None;
    }
    // A job that was to leave may have stayed: nobody gives the target its GPUs then.
    let per_node = u64::try_from(target.gpus_per_worker).ok()?;
    let possible = |name: &String| {
        cluster.usable.contains(name)
            && cluster.nodes.get(name).is_some_and(|node| {
                let kept = holders.kept_on(name).saturating_add(per_node);
                node.gpu_type.as_str() == target.gpu_type && kept <= u64::from(node.gpus.0)
            })
    };
    let placement = Placement {
        gpu_type: target.gpu_type.as_str().into(),
        nodes: target.nodes.iter().map(|name| node_name(name)).collect(),
        gpus_per_node: GpuCount(u32::try_from(target.gpus_per_worker).unwrap_or(0)),
        limit: target.limit_watts.map(|watts| Watts(f64::from(watts))),
    };
    (placement.gpus_per_node.0 > 0 && target.nodes.iter().all(possible)).then_some((placement, target.since))
}

/// The state for the planner. `None`: not planned, because it holds and requests nothing or a node of it is
/// gone.
pub(super) fn state(
    job: &SlimTrainingJob,
    claim: &Claim,
    holding: &Holding,
    now: Timestamp,
    cluster: &Cluster,
    holders: &Holders,
) -> Option<JobState> {
    let held = || {
        let allocation = holding.allocation.as_ref()?;
        let known = |name: &String| {
            cluster.nodes.get(name).is_some_and(|node| node.gpu_type.as_str() == allocation.gpu_type)
        };
        (allocation.gpus_per_worker > 0 && allocation.nodes.iter().all(known)).then(|| placement(allocation))
    };
    let target = target(job, holding, now, cluster, holders);
    match claim {
        // Between its stop and its start at the next placement: still a commitment.
        Claim::Waiting { .. } => Some(target.map_or(JobState::Waiting, |(target, since)| {
            JobState::Starting { target, since: time(since.min(now)) }
        })),
        Claim::Nothing => None,
        Claim::Starting { since } => {
            Some(JobState::Starting { target: held()?, since: time(*since.min(&now)) })
        }
        Claim::Running { since } => {
            Some(JobState::Running { placement: held()?, since: time(*since.min(&now)) })
        }
        Claim::Stopping { goes_on: false, .. } => None,
        Claim::Stopping { gone_by, goes_on: true } => {
            // Unknown on an unreachable node: overdue, so that nobody waits for it.
            let gone_by = gone_by.map_or(Time::ZERO, time);
            let target = target.map(|(target, _)| target);
            Some(JobState::Stopping { holds: held()?, target, gone_by })
        }
    }
}

/// Input for one job.
pub(super) struct JobFacts<'a> {
    pub index: &'a ClusterIndex,
    pub policy: &'a EnergyPolicySpec,
    pub cluster: &'a Cluster,
    pub key: &'a ObjectKey,
    pub job: &'a SlimTrainingJob,
    /// Its next placement is decided, and no step gives it that yet.
    pub promised: bool,
    pub status: Option<&'a TrainingJobStatus>,
    pub table: &'a Table,
    /// The table corrected by the run's observed pace, if that is far off.
    pub corrected: Option<&'a Table>,
    pub outlook: Outlook,
    pub specs: &'a WorkerSpecs,
    /// Epochs lost by a stop with a checkpoint.
    pub lost_epochs: f64,
    /// Measured draw per GPU of its allocation, W.
    pub measured: Option<f64>,
    /// From when on its power limits count; `None`: none is offered.
    pub limits: Option<LimitsCount>,
    /// What admission adds to a worker.
    pub admitted: Option<&'a Admitted>,
    /// Choices that are not made for it again.
    pub barred: &'a Barred<'a>,
    /// Whether its Service is there, if this process knows.
    pub service: Option<bool>,
    pub now: Timestamp,
}

/// Equal for jobs whose workers the same nodes admit.
pub(super) fn demands(
    specs: &WorkerSpecs,
    job: &SlimTrainingJob,
    volumes: &Volumes<'_>,
    admitted: Option<&Admitted>,
    barred: &[&str],
) -> Digest {
    let admitted = admitted.map(|admitted| worker::demands(&admitted.kept));
    worker::digest(&(specs.demands, admitted, job.spec.gpus.memory_gib, volumes.versions(), barred))
}

/// Choices that failed for a job's profile, and what of them counts for it.
#[derive(Default)]
pub(super) struct Barred<'a> {
    /// Architectures of nodes.
    architectures: Vec<&'a str>,
    /// Sizes of workers, with their type.
    sizes: Vec<(&'a str, i32)>,
}

impl<'a> Barred<'a> {
    /// Of a job. Where no other size is left, they are tried again.
    pub fn from_index(
        index: &'a ClusterIndex,
        profile: &ObjectKey,
        job: &SlimTrainingJob,
        now: Timestamp,
    ) -> Self {
        let profile = index.profiles().get(profile);
        let all = profile.and_then(|profile| profile.status.as_ref()).map(|status| status.barred.as_slice());
        let all = all.unwrap_or_default();
        let architectures = all.iter().filter_map(|one| one.architecture.as_deref()).collect();
        let mut sizes: Vec<(&str, i32)> = profiles::barred_sizes(all, now).collect();
        if !sizes.is_empty() {
            let possible = job.spec.gpus.worker_sizes(i32::MAX);
            let barred = sizes.clone();
            sizes.retain(|(of, _)| !possible.iter().all(|size| barred.contains(&(*of, *size))));
        }
        Self { architectures, sizes }
    }

    fn refused_workers(&self, largest_admitted: Option<i32>) -> Vec<RefusedWorkers> {
        let count = |gpus: i32| GpuCount(u32::try_from(gpus).unwrap_or(0));
        let sizes = self.sizes.iter().map(|(of, size)| RefusedWorkers {
            gpu_type: Some(GpuType::new(*of)),
            least: count(*size),
            most: count(*size),
        });
        let larger = largest_admitted.map(|gpus| RefusedWorkers {
            gpu_type: None,
            least: count(gpus.saturating_add(1)),
            most: GpuCount(u32::MAX),
        });
        sizes.chain(larger).collect()
    }
}

fn architecture(node: &SlimNode) -> &str {
    node.labels().get(LABEL_ARCHITECTURE).map_or("", String::as_str)
}

/// Nodes that admit a worker of the job; `None`: all of them.
fn candidates(
    admissions: &mut Admissions,
    given: &JobFacts<'_>,
    worker: &Worker,
    held: &[String],
) -> Option<Arc<[NodeName]>> {
    let JobFacts { cluster, job, .. } = given;
    // A name that no node offers has no column in the plan.
    let lacking = worker::names(worker).into_iter().any(|name| !cluster.offers(name));
    let admitted = if lacking {
        Some(Vec::new().into())
    } else {
        let gpus = &job.spec.gpus;
        let volumes = Volumes::from_spec(given.index, &given.key.namespace, &job.spec, given.admitted);
        // What is admitted has the template's affinity, unless it says another one.
        let spec = LazyCell::new(|| {
            let own = job.spec.template.spec.as_ref().map(worker::slim).unwrap_or_default();
            match given.admitted.map(|admitted| admitted.kept.clone()) {
                Some(kept) => SlimPodSpec { affinity: kept.affinity.clone().or(own.affinity), ..kept },
                None => own,
            }
        });
        let mut without = |barred: &[&str]| {
            let demands = demands(given.specs, job, &volumes, given.admitted, barred);
            let admits = |node: &SlimNode| {
                gpus.memory_fits(gpu_memory(node))
                    && admits::admits(&spec, node)
                    && volumes.admit(node)
                    && !barred.contains(&architecture(node))
            };
            admissions.of(demands, admits)
        };
        // Where no node of another architecture admits it, the image may have been mended.
        let others = without(&given.barred.architectures);
        let none = others.as_ref().is_some_and(|nodes| nodes.is_empty());
        if none && !given.barred.architectures.is_empty() { without(&[]) } else { others }
    };
    // A job stays where it is, even on a node that would not be chosen today.
    let here = |name: &NodeName| held.iter().any(|held| held == name.as_str());
    match &admitted {
        Some(all) if !held.iter().all(|held| listed(all, held)) => {
            let nodes = cluster.nodes.values().map(|node| node.name.clone());
            let names: Vec<_> = nodes.filter(|name| here(name) || listed(all, name.as_str())).collect();
            (names.len() < cluster.nodes.len()).then(|| names.into())
        }
        _ => admitted,
    }
}

/// Whether a node is in a list sorted by name.
fn listed(names: &[NodeName], name: &str) -> bool {
    names.binary_search_by(|listed| listed.as_str().cmp(name)).is_ok()
}

/// The job for the planner.
pub(super) fn job(given: &JobFacts<'_>, mut state: JobState, admissions: &mut Admissions) -> Job {
    let JobFacts { index, policy, cluster, key, job, status, table, corrected, outlook, specs, now, .. } =
        *given;
    let spec = &job.spec;
    let created = job.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0.min(now));
    let held: &[String] =
        status.and_then(|status| status.allocation.as_ref()).map(|a| a.nodes.as_slice()).unwrap_or_default();
    let estimates =
        corrected.map_or_else(|| Arc::clone(&table.rows), |found| paced(found, table, job, &outlook));
    let running_for = match &state {
        JobState::Running { since, .. } => (time(now) - *since).0.max(0.0),
        _ => 0.0,
    };
    let facts = RunFacts {
        reported: outlook.reported,
        running_for: Seconds(running_for),
        usual_run: table.usual_run,
        epochs: f64::from(spec.epochs.max(1)),
        least: GpuCount(spec.gpus.totals().first().and_then(|least| u32::try_from(*least).ok()).unwrap_or(1)),
    };
    let unknown = unknown_rule(&table.predictions, &facts);
    let excluded = status.map(|status| status.excluded_nodes.as_slice()).unwrap_or_default();
    let limits = if given.limits.is_some() && unknown.limits { table.limits.clone() } else { Vec::new() };
    only_offered_limits(&mut state, &limits);
    let allocation = status.and_then(|status| status.allocation.as_ref());
    let estimates =
        allocation.and_then(|held| as_held(&estimates, held, cluster, given.measured)).unwrap_or(estimates);
    let mut worker = worker::worker(index, key, specs, given.admitted);
    if spec.adopts.is_some() || has_service(given) {
        // Its controller makes what its pods need; a Service that was made counts as used wherever the job runs.
        worker.quota_per_gang.clear();
    }
    // On a node that takes no new workers a job stays as it is: it could not start there again.
    let open = held.iter().all(|name| cluster.usable.contains(name));
    Job {
        id: job_id(key),
        namespace: NamespaceName::new(key.namespace.as_str()),
        submit: time(created),
        deadline: instants::deadline(spec, job.metadata.creation_timestamp.as_ref()).map(|d| time(d.0)),
        weight: rules::late_rate(policy, bounded_weight(index, &key.namespace, spec.weight)),
        epochs_left: outlook.epochs_left.max(1e-3),
        estimates,
        spread: spread(table, spec, &cluster.types, &state),
        limits,
        limits_count: given.limits.unwrap_or_default(),
        unknown: unknown.cost,
        requested_gpus: Some(GpuCount(u32::try_from(spec.gpus.max_total()).unwrap_or(1).max(1))),
        candidates: candidates(admissions, given, &worker, held),
        worker,
        refused_workers: given.barred.refused_workers(status.and_then(largest_admitted)),
        forbidden: excluded.iter().filter(|a| a.until.0 > now).map(|a| node_name(&a.node)).collect(),
        preemption: match spec.preemption {
            training_job::Preemption::Allowed => Preemption::Allowed,
            training_job::Preemption::Never => Preemption::Never,
        },
        movable: unknown.movable && open,
        grace: Seconds(pods::grace_seconds(spec) as f64),
        min_run: Seconds(policy.seconds(|policy| &policy.preemption.min_run_time) as f64),
        // At most the attempt's own progress is lost.
        lost: match spec.checkpoint {
            Some(_) => Seconds((given.lost_epochs * outlook.epoch.median).clamp(0.0, running_for)),
            None => Seconds(running_for),
        },
        usually_lost: Some(match spec.checkpoint {
            Some(_) => Seconds((given.lost_epochs * outlook.epoch.median).max(0.0)),
            None => Seconds((outlook.epochs_left * outlook.epoch.median).max(0.0) + running_for),
        }),
        restart: restarts::observed_time(index, &index.profile_key(job)),
        restarts_last_day: restarts::last_day(status, now),
        promised: given.promised,
        state,
    }
}

/// Rows of a run with what it counts for where it is. On another number of GPUs it would be a new run, which counts as one that nobody has
/// measured: otherwise it would grow by its measured draw, count for more once it has, and shrink again. `None`: as they are.
fn as_held(
    rows: &Arc<[Estimate]>,
    held: &Allocation,
    cluster: &Cluster,
    measured: Option<f64>,
) -> Option<Arc<[Estimate]>> {
    let draw = cluster.types.get(&GpuType::new(held.gpu_type.as_str()))?.draw?;
    if measured.is_none() && held.guard_watts.is_none() && !held.guard_reached && draw.guards.is_none() {
        return None;
    }
    let gpus = u32::try_from(held.gpus).ok()?;
    let mut rows = rows.to_vec();
    let row = rows.iter_mut().find(|row| row.gpu_type.as_str() == held.gpu_type && row.gpus.0 == gpus)?;
    row.draw = Some(Watts(draws::of_held(draw, row.power.0, measured, held)));
    Some(rows.into())
}

/// Whether a job has its Service: it is made before the pods of its first gang, and stays as long as the job. After a restart
/// of the operator by what the job's attempts say. A wrong yes costs an attempt that is withdrawn, a wrong no may let the job
/// wait for ever.
fn has_service(given: &JobFacts<'_>) -> bool {
    if let Some(known) = given.service {
        return known;
    }
    let Some(status) = given.status else { return false };
    let has_pods = |held: &Allocation| {
        let name = names::pod_name(&given.key.name, held.attempt, 0);
        let first = ObjectKey { namespace: given.key.namespace.clone(), name };
        held.running_time.is_some()
            || given.index.pods().get(&first).is_some_and(|pod| is_member(pod, given.job))
    };
    let gang = status.allocation.as_ref().filter(|held| held.nodes.len() > 1);
    // There was none when it was refused; only a later gang has made it.
    let mut since = status.history.iter().rev().take_while(|record| !service_was_refused(record));
    gang.is_some_and(has_pods)
        || since.any(|record| record.placement.contains(", ") && may_have_made_its_service(record))
}

/// Whether an attempt may have come to its Service: it did not wait for earlier pods to the end, and no other Service had the name.
/// One that lost its nodes or GPUs may have lost them after that, while the API server made no pods.
fn may_have_made_its_service(record: &AttemptRecord) -> bool {
    let early = record.reason == Reason::WaitingForRelease.as_str();
    record.outcome != Outcome::Withdrawn || !(early || record.message.starts_with("Service "))
}

/// Whether the API server refused the Service of an attempt. Its message begins with the resource that it refuses.
fn service_was_refused(record: &AttemptRecord) -> bool {
    record.outcome == Outcome::Withdrawn && record.message.starts_with("services \"")
}

/// Effects of several nodes, for numbers of nodes that the job can use. The pods of an adopted workload are spread evenly.
fn spread(table: &Table, spec: &TrainingJobSpec, types: &Types, state: &JobState) -> Vec<MultiNodeEffect> {
    // Totals that a plan could divide by the nodes, with the pods that they mean.
    let totals: Vec<(u32, u32)> = spec
        .adopts
        .iter()
        .flat_map(|adopts| {
            let numbers = spec.gpus.totals().into_iter();
            numbers.filter_map(|gpus| {
                Some((u32::try_from(gpus).ok()?, u32::try_from(adopts.pods_on(gpus)).ok()?))
            })
        })
        .collect();
    let even = |effect: &&MultiNodeEffect| {
        let nodes = effect.nodes.max(1);
        totals.iter().all(|(gpus, pods)| !gpus.is_multiple_of(nodes) || pods.is_multiple_of(nodes))
    };
    let any = any_number_of_nodes(&spec.gpus, types);
    let places = match state {
        JobState::Waiting => [None, None],
        JobState::Starting { target: one, .. } | JobState::Running { placement: one, .. } => {
            [Some(one), None]
        }
        JobState::Stopping { holds, target, .. } => [Some(holds), target.as_ref()],
    };
    let held =
        |nodes: u32| places.iter().flatten().any(|place| u32::try_from(place.nodes.len()) == Ok(nodes));
    let some = |effect: &&MultiNodeEffect| any || effect.nodes.is_power_of_two() || held(effect.nodes);
    table.spread.iter().filter(some).filter(even).cloned().collect()
}

/// Treats a limit that is no longer offered as none. The plan lifts it; until then the job draws less than
/// counted.
fn only_offered_limits(state: &mut JobState, limits: &[LimitEffect]) {
    let offered = |place: &Placement| {
        limits.iter().any(|l| l.gpu_type == place.gpu_type && Some(l.limit) == place.limit)
    };
    let places = match state {
        JobState::Waiting => [None, None],
        JobState::Starting { target, .. } => [Some(target), None],
        JobState::Running { placement, .. } => [Some(placement), None],
        JobState::Stopping { holds, target, .. } => [Some(holds), target.as_mut()],
    };
    for place in places.into_iter().flatten() {
        if !offered(place) {
            place.limit = None;
        }
    }
}

/// Rows of a corrected table, scaled so that the current allocation has its forecast's time and spread.
/// `base` gives the effects of nodes and limits, as for the plan.
fn paced(
    table: &Table,
    base: &Table,
    job: &SlimTrainingJob,
    outlook: &Outlook,
) -> Arc<[andreas_planner::Estimate]> {
    let held = job.status.as_ref().and_then(|status| status.allocation.as_ref());
    let at =
        held.and_then(|held| Some((held, table.row_index(&held.gpu_type, u32::try_from(held.gpus).ok()?)?)));
    let Some((held, at)) = at else { return Arc::clone(&table.rows) };
    let slower =
        base.spread_factor(held.nodes.len()) * base.limit_factor(&held.gpu_type, held.power_limit_watts);
    let factor = outlook.epoch.median / (table.times[at].median * slower);
    let factor = if factor.is_finite() && factor > 0.0 { factor } else { 1.0 };
    // `factor` is one of medians, rows are means: a narrower spread lowers the mean.
    let row = |(n, row): (usize, &andreas_planner::Estimate)| {
        let rel_std = if n == at { outlook.epoch.sigma.min(row.rel_std) } else { row.rel_std };
        let narrower = mean_over_median(rel_std) / mean_over_median(row.rel_std);
        andreas_planner::Estimate { epoch: row.epoch * (factor * narrower), rel_std, ..row.clone() }
    };
    table.rows.iter().enumerate().map(row).collect()
}
