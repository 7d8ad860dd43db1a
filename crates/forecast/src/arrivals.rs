//! What will be submitted: a future repeats what was submitted lately, from an instant of its own on.
//!
//! So bursts, quiet hours, and what comes together stay as they were (a circular block bootstrap: Politis and Romano,
//! 1992). The instants are spread evenly over the futures. Until an hour of submissions is known, a burst goes on in half of
//! the futures, and counts as one an hour in the others.

use std::cmp::Ordering;
use std::collections::{HashSet, VecDeque};

use andreas_core::{JobId, Seconds, Time};
use andreas_planner::{Job, JobState, Snapshot};

/// Maximum submissions that are remembered.
const MOST: usize = 256;
/// Minimum submissions from which something follows.
const LEAST: usize = 8;
/// Minimum time that they stand for where they go on, and where they are one burst among quiet hours.
const LEAST_SPANS: [Seconds; 2] = [Seconds(60.0), Seconds(3_600.0)];
/// Rows of estimates above which a job is not remembered, for its size.
const MOST_ROWS: usize = 256;

/// The last submissions, as they were first seen. Memory: at most 256 jobs of 256 rows of estimates, with their lists of nodes.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    /// Instants of the first and of the last snapshot; the first is that of the oldest submission once some are forgotten.
    span: Option<(Time, Time)>,
    /// What was submitted before is not counted.
    floor: Option<(Time, JobId)>,
    /// In the order of their submission, each with whether it has held GPUs.
    jobs: VecDeque<(Job, bool)>,
}

fn order(job: &Job, other: (Time, &JobId)) -> Ordering {
    job.submit.total_cmp(&other.0).then_with(|| job.id.cmp(other.1))
}

impl Arrivals {
    /// Takes up the jobs that were submitted since the last snapshot. Those of the first one count as older; one that goes before it
    /// has held GPUs does not count.
    pub fn observe(&mut self, snapshot: &Snapshot) {
        let Some((from, _)) = self.span else {
            let newest = snapshot.jobs.iter().max_by(|a, b| order(a, (b.submit, &b.id)));
            self.floor = newest.map(|job| (job.submit, job.id.clone()));
            self.span = Some((snapshot.now, snapshot.now));
            return;
        };
        self.span = Some((from, snapshot.now.max(from)));
        self.forget_withdrawn(snapshot);
        // A clock that is ahead of ours would date a job anew with each snapshot.
        let counts = |job: &&Job| job.submit <= snapshot.now && job.estimates.len() <= MOST_ROWS;
        for job in snapshot.jobs.iter().filter(counts) {
            if self.floor.as_ref().is_some_and(|(submit, id)| order(job, (*submit, id)).is_le()) {
                continue;
            }
            let holds = !matches!(job.state, JobState::Waiting);
            match self.jobs.binary_search_by(|(other, _)| order(other, (job.submit, &job.id))) {
                Ok(at) => self.jobs[at].1 |= holds,
                // What it had to do when it came is not known of one that runs already.
                Err(at) if !holds => self.jobs.insert(at, (as_submitted(job), false)),
                Err(_) => {}
            }
            if self.jobs.len() > MOST
                && let Some((oldest, _)) = self.jobs.pop_front()
            {
                self.span = Some((oldest.submit, snapshot.now.max(oldest.submit)));
                self.floor = Some((oldest.submit, oldest.id));
            }
        }
    }

    /// The submissions that are remembered.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter().map(|(job, _)| job)
    }

    /// Removes submissions that left the queue before they held GPUs.
    fn forget_withdrawn(&mut self, snapshot: &Snapshot) {
        if self.jobs.iter().any(|(_, held)| !held) {
            let here: HashSet<&JobId> = snapshot.jobs.iter().map(|job| &job.id).collect();
            self.jobs.retain(|(job, held)| *held || here.contains(&job.id));
        }
    }

    /// The first `most` jobs of a future, in the order of their submission, none before `now`.
    pub(crate) fn of_future(&self, now: Time, (future, futures): (usize, usize), most: usize) -> Vec<Job> {
        let Some((from, until)) = self.span.filter(|_| self.jobs.len() >= LEAST) else { return Vec::new() };
        let span = (until - from).0.max(LEAST_SPANS[future % LEAST_SPANS.len()].0);
        let cut = span * (future as f64 + 0.5) / futures.max(1) as f64;
        // What follows the cut comes first, then the past from its begin on, and so on.
        let after = |job: &Job| ((job.submit - from).0.clamp(0.0, span) - cut).rem_euclid(span);
        let mut round: Vec<(f64, &Job)> = self.jobs().map(|job| (after(job), job)).collect();
        round.sort_by(|a, b| a.0.total_cmp(&b.0));
        (0..most)
            .map(|n| {
                let (after, job) = round[n % round.len()];
                let submit = now + Seconds(after + span * (n / round.len()) as f64);
                Job {
                    // No job of a user has such a name.
                    id: JobId::new(format!("{}/~{n}", job.namespace)),
                    deadline: job.deadline.map(|deadline| submit + (deadline - job.submit)),
                    submit,
                    ..job.clone()
                }
            })
            .collect()
    }
}

/// Nothing of what has happened to it.
fn as_submitted(job: &Job) -> Job {
    Job {
        state: JobState::Waiting,
        lost: Seconds::ZERO,
        forbidden: Vec::new(),
        restart: None,
        restarts_last_day: 0,
        promised: false,
        exploration: None,
        ..job.clone()
    }
}
