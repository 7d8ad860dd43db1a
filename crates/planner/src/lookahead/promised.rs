//! A gang's start that a plan has promised is kept room for once it is overdue.
//!
//! Prices know what is there in all in a period, not whether it is in one piece. So a gang may be about to start in the next
//! period at every decision while each GPU that becomes free goes to a small job, until it has aged. The time at which a plan
//! first meant to start it is remembered ([`IntendedChange`](crate::IntendedChange)). When that has passed and the gang would
//! still rather start than wait, the nodes that are free for it first are reserved, as soon as its further waiting costs as much
//! as that does.

use andreas_model::Time;

use super::search_state::SearchState;
use super::step::Step;
use crate::capacity::Obstacle;
use crate::instance::{Assignment, Holding, Instance};
use crate::partial::PartialPlan;
use crate::reserve::{self, Reservation};

/// When the last plan meant to start a waiting job.
fn promise(instance: &Instance<'_>, job: usize) -> Option<Time> {
    let data = &instance.jobs[job];
    data.intended.filter(|_| matches!(data.holding, Holding::Nothing)).map(|intended| intended.at)
}

/// Whether the start of a waiting job was promised for now or earlier.
pub(super) fn any_is_due(instance: &Instance<'_>) -> bool {
    let is_due = |job: usize| promise(instance, job).is_some_and(|at| at <= instance.snapshot.now);
    (0..instance.jobs.len()).any(is_due)
}

/// The job that loses most by waiting beyond its promised start, though it would rather start than wait, and what it would cost to wait
/// once more for as long as it has waited since then; at most for as long as it or the median job runs.
fn overdue(plan: &SearchState<'_, '_, '_>) -> Option<(usize, f64)> {
    let (instance, cost_table) = (plan.step.instance, plan.step.cost_table);
    let overdue = |job: usize| {
        let since = (instance.snapshot.now - promise(instance, job)?).0;
        let best = plan.step.options[job].first()?;
        let column = &cost_table.items[cost_table.columns_of(job).start + best.config];
        let at = |begin: f64| cost_table.cost(instance, &instance.jobs[job], column, begin, 0.0);
        let again = since.min(column.time.max(cost_table.periods.median()));
        let cost = at(cost_table.delay[job] + again) - at(cost_table.delay[job]);
        (since > 0.0 && cost > 0.0).then_some((job, cost))
    };
    let waiting = (0..plan.open.len()).filter(|job| plan.partial.assignments[*job].is_none());
    waiting.filter_map(overdue).max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
}

/// Takes the plan in which everybody stays and starts of others make room for a promised one, if that costs no more than to let it wait
/// once more for as long as since it was due: so the waiting costs at most about twice what the room does. Returns what is kept for it.
///
/// Where it waits for quota or watts nothing is kept: others may use the nodes until then.
pub(super) fn keep_room(
    plan: &mut SearchState<'_, '_, '_>,
    unmoved: PartialPlan,
    queue: &[usize],
) -> Option<Reservation> {
    let (job, most) = overdue(plan)?;
    let (step, instance) = (plan.step, plan.step.instance);
    let mut without = SearchState::new(step, unmoved, plan.open);
    let best = step.options[job].iter().min_by(|a, b| a.cost.total_cmp(&b.cost))?.config;
    let mut kept = None;
    match without.partial.ledger.find(instance, job, best) {
        Ok(nodes) => without.assign(job, Assignment { config: best, nodes }),
        Err(Obstacle::Nodes) => kept = Some(reserve::reserve(instance, &mut without.partial, job, &[best])?),
        Err(Obstacle::Quota | Obstacle::Power) => return None,
    }
    without.fill(queue, kept.as_ref());
    if without.cost - plan.cost > most {
        return None;
    }
    *plan = without;
    kept
}

/// When waiting gangs are to start: job, seconds from now, configuration. The first promise counts, until a start would be dearer
/// than to wait.
pub(super) fn starts(
    step: &Step<'_, '_>,
    assignments: &[Option<Assignment>],
) -> impl Iterator<Item = (usize, f64, usize)> {
    let start = |job: usize| {
        let (instance, data) = (step.instance, &step.instance.jobs[job]);
        if assignments[job].is_some() || !matches!(data.holding, Holding::Nothing) {
            return None;
        }
        let later = step.deferred.later[job].as_ref()?;
        let config = later.item - step.cost_table.columns_of(job).start;
        if data.configs[config].gpus < 2 {
            return None;
        }
        let begin = step.begin(job, later.start);
        let promised = promise(instance, job).map(|at| (at - instance.snapshot.now).0);
        let kept = promised.filter(|at| *at > 0.0 || !step.options_better_than_waiting(job).is_empty());
        Some((job, kept.map_or(begin, |at| begin.min(at)), config))
    };
    (0..assignments.len()).filter_map(start)
}

#[cfg(test)]
mod tests {
    use andreas_model::JobId;
    use serde_json::{Value, json};

    use crate::{Options, Plan, Snapshot, plan};

    /// Two nodes of two GPUs. On each a job that may not be moved holds one for another minute. A gang of two GPUs, which was to
    /// start at `promised`, and two small jobs of ten minutes and this weight wait. In a minute there is room for all, but for the
    /// gang not in one piece if both small ones start now.
    fn decided(promised: Option<f64>, weight: f64) -> Plan {
        let job = |name: &str, gpus: u32, weight: f64, epoch: f64, state: Value| {
            json!({"id": name, "namespace": "team", "submit": 900.0, "weight": weight, "epochs_left": 1.0,
                   "estimates": [{"gpu_type": "A", "gpus": gpus, "epoch": epoch, "power": 300.0 * f64::from(gpus)}],
                   "movable": false, "worker": {}, "state": state})
        };
        let on = |node: &str| json!({"Running": {"since": 950.0, "placement": {"gpu_type": "A", "gpus_per_node": 1, "nodes": [node]}}});
        let node = |name: &str| json!({"name": name, "gpu_type": "A", "gpus": 2, "free_gpus": 2, "free": {}});
        let start =
            |at: f64| json!({"job": "gang", "at": at, "gpu_type": "A", "nodes": 1, "gpus_per_node": 2});
        let snapshot: Snapshot = serde_json::from_value(json!({
            "now": 1_000.0, "tariff": [[0.0, 1e-8]], "gpu_types": [{"name": "A", "idle": 50.0, "max": 400.0}],
            "lateness": {"turnaround_share": 0.1}, "nodes": [node("n1"), node("n2")],
            "intended": promised.map(start).into_iter().collect::<Vec<_>>(),
            "jobs": [job("first", 1, 1e-3, 60.0, on("n1")), job("second", 1, 1e-3, 60.0, on("n2")),
                     job("gang", 2, 1e-2, 60.0, json!("Waiting")),
                     job("small-1", 1, weight, 600.0, json!("Waiting")), job("small-2", 1, weight, 600.0, json!("Waiting"))]}))
        .expect("a snapshot");
        plan(&snapshot, &Options::default()).expect("a plan")
    }

    #[test]
    fn small_jobs_start_on_every_node_until_a_gangs_promised_start_is_overdue() {
        // Also then where their own wait would cost more than the gang's.
        for (promised, weight, small) in
            [(None, 1e-2, 2), (Some(1_030.0), 1e-2, 2), (Some(940.0), 1e-2, 1), (Some(940.0), 3e-2, 2)]
        {
            let plan = decided(promised, weight);
            let runs = |name: &str| plan.jobs[&JobId::new(name)].decision.placement().is_some();
            assert!(runs("first") && runs("second") && !runs("gang"), "{plan:?}");
            let started = ["small-1", "small-2"].into_iter().filter(|name| runs(name)).count();
            assert_eq!(started, small, "promised at {promised:?}, {weight}");
            // The next plan knows of a promise that the gang still wants.
            let start = plan.intended.iter().find(|start| start.job.as_str() == "gang").expect("promised");
            let kept = promised.filter(|_| weight < 2e-2);
            assert!(
                kept.is_none_or(|at| start.at.0 == at) && (kept.is_some() || start.at > plan.now),
                "{start:?}"
            );
        }
    }
}
