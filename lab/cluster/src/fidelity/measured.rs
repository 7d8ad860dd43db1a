//! What a run tells of its own instants and delays: from the phases of its jobs, as an observer saw them. Pure.

use std::collections::BTreeMap;

use andreas_api::phase::Phase;
use andreas_e2e::seen::{ClusterHistory, JobView};
use serde::{Deserialize, Serialize};

/// Phases of each job in the order seen, with seconds since the observer's start, by the job's name.
pub type Phases = BTreeMap<String, Vec<(f64, Phase)>>;

/// What was seen of each job, by its name.
fn by_name(seen: &ClusterHistory) -> impl Iterator<Item = (String, &JobView)> {
    let name = |key: &str| key.rsplit('/').next().unwrap_or(key).to_owned();
    seen.jobs.iter().map(move |(key, view)| (name(key), view))
}

/// Phases of the jobs as an observer saw them.
pub fn phases(seen: &ClusterHistory) -> Phases {
    let of = |view: &JobView| view.phases.iter().map(|(at, phase)| (at.as_secs_f64(), *phase)).collect();
    by_name(seen).map(|(name, view)| (name, of(view))).collect()
}

/// Time in the system of each job that succeeded, s, by its name.
pub fn turnarounds(seen: &ClusterHistory) -> BTreeMap<String, f64> {
    let of = |view: &JobView| {
        let status = view.job.status.as_ref().filter(|status| status.phase == Phase::Succeeded)?;
        let created = view.job.metadata.creation_timestamp.as_ref()?.0;
        Some(status.completion_time.as_ref()?.0.duration_since(created).as_secs_f64())
    };
    by_name(seen).filter_map(|(name, view)| Some((name, of(view)?))).collect()
}

/// Jobs that start within this time after their submission waited for nothing but the decision.
const AT_ONCE: f64 = 2.0;

/// Mean delays of a run, s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Delays {
    /// From a submission to the decision on it.
    pub decision: f64,
    /// From the decision on a first start to training.
    pub first_start: f64,
    /// From the decision on a move to training at the new place.
    pub restart: f64,
    /// From the decision on a stop until the GPUs are free.
    pub stop: f64,
}

impl Delays {
    /// From the phases of a run's jobs.
    pub fn of(phases: &Phases) -> Self {
        let (mut decisions, mut first, mut restarts, mut stops) = (vec![], vec![], vec![], vec![]);
        for seen in phases.values() {
            let submitted = seen.first().map_or(0.0, |(at, _)| *at);
            let started = seen.iter().find(|(_, phase)| *phase == Phase::Starting).map(|(at, _)| *at);
            decisions.extend(started.map(|at| at - submitted).filter(|wait| *wait < AT_ONCE));
            let running = seen.iter().find(|(_, phase)| *phase == Phase::Running).map(|(at, _)| *at);
            first.extend(started.zip(running).map(|(from, to)| to - from));
            for (at, (begin, phase)) in seen.iter().enumerate() {
                if *phase != Phase::Stopping {
                    continue;
                }
                let Some((gone, _)) = seen.get(at + 1) else { continue };
                stops.push(gone - begin);
                let again = seen[at..].iter().find(|(_, phase)| *phase == Phase::Running);
                // What waited for room in between is none of the restart.
                let waited = |to: f64| to - begin < AT_ONCE + (gone - begin);
                restarts.extend(again.map(|(to, _)| *to).filter(|to| waited(*to)).map(|to| to - begin));
            }
        }
        Self {
            decision: mean(&decisions),
            first_start: mean(&first),
            restart: mean(&restarts),
            stop: mean(&stops),
        }
    }
}

/// When each job was seen first, s after the first one.
pub fn submits(phases: &Phases) -> BTreeMap<String, f64> {
    let first = |seen: &Vec<(f64, Phase)>| seen.first().map(|(at, _)| *at);
    let begin = phases.values().filter_map(first).fold(f64::INFINITY, f64::min);
    phases.iter().filter_map(|(name, seen)| Some((name.clone(), first(seen)? - begin))).collect()
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_those_between_phases() {
        use Phase::{Pending, Running, Starting, Stopping, Succeeded};
        let phases = Phases::from([
            (
                "a".into(),
                vec![
                    (1.0, Pending),
                    (1.5, Starting),
                    (2.5, Running),
                    (10.0, Stopping),
                    (10.5, Starting),
                    (11.5, Running),
                    (20.0, Succeeded),
                ],
            ),
            // Waits for room before its start and after its stop.
            (
                "b".into(),
                vec![(3.0, Pending), (30.0, Starting), (32.0, Running), (40.0, Stopping), (41.0, Pending)],
            ),
        ]);
        let delays = Delays::of(&phases);
        assert_eq!(delays, Delays { decision: 0.5, first_start: 1.5, restart: 1.5, stop: 0.75 });
        assert_eq!(submits(&phases), BTreeMap::from([("a".into(), 0.0), ("b".into(), 2.0)]));
        assert_eq!(Delays::of(&Phases::new()), Delays::default());
    }
}
