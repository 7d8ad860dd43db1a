//! What a method's knowledge costs gangs: how long they wait for their first start.

use andreas_model::Seconds;

use super::title;
use crate::outcome::Outcome;
use crate::scenario::Scenario;

/// A gang that waits this many times as long as with other knowledge is counted.
const MUCH_LONGER: f64 = 1.2;
/// Shorter waits count as so long: between seconds a ratio means nothing.
const LEAST: Seconds = Seconds(60.0);

/// How long jobs that ask for more GPUs than any node has wait, against the same method in `reference`. Waits are means over the
/// runs. `None` where no such job starts in both.
pub fn gang_waits(scenario: &Scenario, reference: &Outcome, outcome: &Outcome) -> Option<String> {
    let widest = scenario.nodes.iter().map(|node| node.gpus).max()?;
    let jobs = scenario.jobs.iter().zip(reference.waits.iter().zip(&outcome.waits));
    let gangs =
        jobs.filter(|(job, _)| scenario.counts(job) && job.requested_gpus.is_some_and(|gpus| gpus > widest));
    let waits: Vec<(Seconds, Seconds)> =
        gangs.filter_map(|(_, (reference, own))| Some(((*reference)?, (*own)?))).collect();
    let ratio = |&(reference, own): &(Seconds, Seconds)| own.max(LEAST) / reference.max(LEAST);
    let worst = waits.iter().map(ratio).reduce(f64::max)?;
    let longer = waits.iter().filter(|waits| ratio(waits) > MUCH_LONGER).count();
    let mean = |of: fn(&(Seconds, Seconds)) -> Seconds| {
        waits.iter().map(|waits| of(waits).0 / 3600.0).sum::<f64>() / waits.len() as f64
    };
    Some(format!(
        "Gangs (they ask for more GPUs than a node has): {}. They wait {:.2} h under {}, {:.2} h under {}; {longer} over \
         {MUCH_LONGER} times as long, the worst {worst:.2} times.",
        waits.len(),
        mean(|waits| waits.1),
        title(outcome),
        mean(|waits| waits.0),
        title(reference),
    ))
}
