//! A gang's start that a plan has promised is kept room for once it is due.
//!
//! Prices know what is there in all in a period, not whether it is in one piece. So a gang may be about to start in the next
//! period at every decision while each GPU that becomes free goes to a small job, until it has aged. The time at which a plan
//! first meant to start it is remembered ([`IntendedChange`](crate::IntendedChange)). When it has come, and a start is still
//! worth more than the GPUs cost others, the nodes that are free for it first are reserved.

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
