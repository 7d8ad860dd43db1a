//! Whether the template can become a pod, by a server-side dry run of a worker.

use std::collections::BTreeSet;

use andreas_api::phase::condition;
use andreas_api::shared_template::MAX_TEMPLATE;
use andreas_api::{Reason, TrainingJobSpec, TrainingJobStatus};
use andreas_cluster::instants::{self, after};
use jiff::Timestamp;

use super::action::Action;
use super::draft::Draft;
use super::observed::{DryRunResult, Observed};
use super::pods;
use super::status::{self, ConditionValue};

/// Seconds between dry runs of a refused template: initial and maximum.
const FIRST_RETRY: i64 = 1;
const MAX_RETRY: i64 = 300;
/// Maximum resources that a worker's containers ask for by name, and ports of its node.
const MAX_RESOURCES: usize = 32;
const MAX_HOST_PORTS: usize = 32;
/// Seconds between checks of a claim that blocks the job's planning.
const CHECK_CLAIMS_EVERY: i64 = 60;

const NO_ROOM: &str =
    "the templates of this namespace's jobs take all the memory that they may have; equal ones count once";

/// Checks that the API server would accept a worker. False while the template is refused.
///
/// A quota refusal does not refuse the template. Quota comes last in admission, so all else was accepted and
/// a smaller worker may fit. The planner knows the quota.
pub(super) fn fits(d: &mut Draft<'_>) -> bool {
    let spec = &d.o.job.spec;
    if spec.template.has_no_room() {
        d.wait_for(Reason::QueueFull, NO_ROOM);
        d.not_plannable = true;
        return false;
    }
    let spec_problem = problem(spec);
    if let Some(words) = spec_problem.or_else(|| single_node_claim(d)) {
        d.set_condition(
            condition::TEMPLATE_ACCEPTED,
            ConditionValue::False,
            Reason::TemplateRejected,
            &words,
        );
        d.wait_for(Reason::TemplateRejected, &words);
        d.not_plannable = true;
        return false;
    }
    let most = spec.gpus.totals().last().copied().unwrap_or(1);
    let gpus = largest_worker(d.o);
    let shown = status::condition(&d.status.conditions, condition::TEMPLATE_ACCEPTED);
    // Nodes without GPUs for a moment, for example during a device plug-in restart, cost no dry run: a larger
    // worker was admitted.
    let enough = |tried: i32| (gpus..=most).contains(&tried);
    let holds = shown.is_some_and(|c| c.status == "True" && admitted(&c.message).is_some_and(enough));
    let shown_true = shown.is_some_and(|c| c.status == "True");
    let was_refused = shown.is_some_and(|c| c.status == "False");
    let refused_since = shown.map_or(d.o.now, |c| c.last_transition_time.0);
    if holds {
        // What admission adds is kept in this process's memory only, and may be why the last run found no place.
        let found_none =
            d.status.history.last().filter(|last| last.reason == Reason::PlacementTimeout.as_str());
        let since = found_none.map(|last| last.ended.0);
        if d.o.dry_run.is_none_or(|run| since.is_some_and(|since| run.at < since)) {
            try_worker(d);
        }
        d.not_plannable = awaits_dry_run(d);
        return true;
    }
    let dry_run = d.o.dry_run.filter(|v| v.gpus == gpus || v.refusal.is_none() && enough(v.gpus));
    let Some(dry_run) = dry_run else {
        try_worker(d);
        // Unknown yet: a refused template stays refused. While dry runs get no verdict, untested templates
        // are not planned.
        let refused = was_refused || d.o.backoff.is_some_and(|backoff| backoff.untried);
        d.not_plannable = refused || awaits_dry_run(d);
        return !refused;
    };
    match &dry_run.refusal {
        None => {
            let accepted = accepted(dry_run);
            if was_refused || shown_true || dry_run.smaller.is_some() {
                show(d, &accepted);
            }
            // Acceptance is not worth a write of its own.
            d.accepted = Some(accepted);
            if was_refused && d.reason() == Some(Reason::TemplateRejected) {
                d.wait_for(Reason::NotPlannedYet, "waits for the next plan");
            }
            if dry_run.smaller.is_some() {
                retry_at(d, after(dry_run.at, MAX_RETRY));
            }
            true
        }
        Some((Reason::QuotaExceeded, words)) => {
            if dry_run.smaller.is_some() {
                // Larger ones are refused whatever the quota.
                show(d, &accepted(dry_run));
            } else if was_refused {
                d.clear_condition(condition::TEMPLATE_ACCEPTED);
            }
            if matches!(d.reason(), None | Some(Reason::NotPlannedYet | Reason::TemplateRejected)) {
                d.wait_for(Reason::QuotaExceeded, words);
            }
            retry(d, dry_run.at, refused_since);
            true
        }
        Some((_, words)) => {
            if d.reason() != Some(Reason::TemplateRejected) {
                d.event(true, Reason::TemplateRejected, words.clone());
            }
            d.set_condition(
                condition::TEMPLATE_ACCEPTED,
                ConditionValue::False,
                Reason::TemplateRejected,
                words,
            );
            d.wait_for(Reason::TemplateRejected, &format!("{words}; it is tried again within 5 minutes"));
            d.not_plannable = true;
            retry(d, dry_run.at, refused_since);
            false
        }
    }
}

/// A worker that this process has not tried waits briefly to learn what admission adds, unless no server
/// answers.
fn awaits_dry_run(d: &Draft<'_>) -> bool {
    d.o.dry_run.is_none() && d.o.backoff.is_none() && !d.o.failing
}

const ADMITS: &str = "the API server admits a worker with ";

/// After the number of GPUs, where larger workers are refused.
const NO_LARGER: &str = "; larger ones are refused, and tried again after 5 minutes: ";

/// Shows what is accepted, as of now.
fn show(d: &mut Draft<'_>, accepted: &str) {
    d.clear_condition(condition::TEMPLATE_ACCEPTED);
    d.set_condition(condition::TEMPLATE_ACCEPTED, ConditionValue::True, Reason::AsExpected, accepted);
}

fn accepted(dry_run: &DryRunResult) -> String {
    let gpus = dry_run.smaller.as_ref().map_or(dry_run.gpus, |(gpus, _)| *gpus);
    let larger = dry_run.smaller.as_ref().map(|(_, words)| format!("{NO_LARGER}{words}"));
    format!("{ADMITS}{gpus} GPU{}{}", if gpus == 1 { "" } else { "s" }, larger.unwrap_or_default())
}

/// GPUs of the worker named in [`accepted`]'s text.
fn admitted(message: &str) -> Option<i32> {
    message.strip_prefix(ADMITS)?.split(' ').next()?.parse().ok()
}

/// GPUs of the largest worker that the API server admits, if it refuses larger ones. As its status says, which outlives this process.
pub fn largest_admitted(status: &TrainingJobStatus) -> Option<i32> {
    let shown = status::condition(&status.conditions, condition::TEMPLATE_ACCEPTED)?;
    admitted(&shown.message).filter(|_| shown.status == "True" && shown.message.contains(NO_LARGER))
}

/// GPUs of the largest worker that may come to be.
fn largest_worker(o: &Observed<'_>) -> i32 {
    let gpus = &o.job.spec.gpus;
    let most = gpus.totals().last().copied().unwrap_or(1);
    o.settings.largest_node_gpus.map_or(most, |largest| most.min(largest.max(1)))
}

/// What of a template the API server would accept and we do not.
pub fn problem(spec: &TrainingJobSpec) -> Option<String> {
    too_large(spec).or_else(|| too_many_names(spec)).or_else(|| unknown_container(spec))
}

/// The API server accepts objects up to 1.5 MB. Templates of that size for a thousand jobs would not fit in
/// memory.
fn too_large(spec: &TrainingJobSpec) -> Option<String> {
    spec.template.is_too_large().then(|| {
        format!(
            "spec.template: has more than the {} kB that a template may have: keep what is large in a ConfigMap, a Secret or the image",
            MAX_TEMPLATE / 1024
        )
    })
}

/// A plan counts each of these for every node.
fn too_many_names(spec: &TrainingJobSpec) -> Option<String> {
    let spec = spec.template.spec.as_ref()?;
    let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let amounts = containers().filter_map(|container| container.resources.as_ref());
    let amounts = amounts.chain(&spec.resources).flat_map(|r| r.limits.iter().chain(&r.requests));
    let names: BTreeSet<&str> =
        amounts.chain(&spec.overhead).flat_map(|map| map.keys().map(String::as_str)).collect();
    let on_host = spec.host_network == Some(true);
    let ports = containers().flat_map(|container| container.ports.iter().flatten());
    let ports: BTreeSet<(i32, &str)> = ports
        .filter(|port| on_host || port.host_port.is_some_and(|port| port > 0))
        .map(|port| {
            (port.host_port.unwrap_or(port.container_port), port.protocol.as_deref().unwrap_or("TCP"))
        })
        .collect();
    let too_many = |what: &str, count: usize, most: usize| {
        (count > most).then(|| {
            format!("spec.template.spec: its containers ask for {count} {what}, of which {most} are allowed")
        })
    };
    too_many("resources by name", names.len(), MAX_RESOURCES)
        .or_else(|| too_many("ports of their node", ports.len(), MAX_HOST_PORTS))
}

/// The API server would accept a pod without the training container; it would hold no GPU.
fn unknown_container(spec: &TrainingJobSpec) -> Option<String> {
    let name = spec.container.as_deref()?;
    let containers = spec.template.spec.as_ref().map(|s| s.containers.as_slice()).unwrap_or_default();
    (!containers.iter().any(|c| c.name == name))
        .then(|| format!("spec.container: the template has no container named {name}"))
}

/// The API server would accept a gang with a claim that only one node can mount. All other pods would wait
/// for it while they hold GPUs. Claims change seldom, so the job is checked now and then.
fn single_node_claim(d: &mut Draft<'_>) -> Option<String> {
    let words = d.o.single_node_claim?;
    d.requeue_at(after(d.o.now, CHECK_CLAIMS_EVERY));
    Some(format!("{words}; use a ReadWriteMany claim, or set gpus.maxNodes to 1"))
}

/// Retries after as long as it has been refused, 1 s to 5 min. A refusal in a namespace without its service
/// account yet may be accepted soon.
fn retry(d: &mut Draft<'_>, tried: Timestamp, since: Timestamp) {
    let pause = instants::seconds_between(since, tried).clamp(FIRST_RETRY, MAX_RETRY);
    retry_at(d, after(tried, pause));
}

fn retry_at(d: &mut Draft<'_>, due: Timestamp) {
    if due <= d.o.now { try_worker(d) } else { d.requeue_at(due) }
}

fn try_worker(d: &mut Draft<'_>) {
    let gpus = largest_worker(d.o);
    let attempt = d.status.attempts.saturating_add(1);
    let pod = pods::unplaced_worker(d.o.job, attempt, gpus, d.o.settings);
    let smaller = d.o.job.spec.gpus.worker_sizes(gpus - 1);
    d.actions.push(Action::DryRun { gpus, pod: Box::new(pod), smaller });
}
