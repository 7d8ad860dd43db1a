//! Energy and cost by namespace and GPU type, as counters: they never fall, even if jobs are deleted.
//!
//! A running attempt is counted at each scrape by its prediction. At its end, the value in its status counts;
//! late measurements are added. If less was measured than predicted, the counter stays constant until the
//! true value catches up. Use before this process was the leader is not counted: the previous leader counted
//! it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

/// Maximum distinct namespaces.
const MAX_NAMESPACES: usize = 200;
/// Maximum distinct GPU types.
pub const MAX_TYPES: usize = 16;
/// Maximum distinct pairs of both.
const MAX_PAIRS: usize = 1_000;
/// Label of all others. No namespace can have this name.
pub const OTHER: &str = "_other";

/// An attempt and the labels of its use.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// UID of the job.
    pub uid: String,
    /// Number of the attempt.
    pub attempt: i64,
    /// Namespace of the job.
    pub namespace: String,
    /// Type of its GPUs.
    pub gpu_type: String,
    /// When its members ran.
    pub started: Option<Timestamp>,
}

/// Joules, and their cost in millionths.
pub type Use = (i64, i64);

/// A sum that may shrink, exposed as one that never falls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    known: f64,
    shown: f64,
}

impl Sum {
    fn add(&mut self, more: f64) {
        self.known += more;
        self.shown = self.shown.max(self.known);
    }
}

/// Energy and cost used.
#[derive(Debug, Default)]
pub struct Totals {
    /// Since when this process is the leader.
    since: Option<Timestamp>,
    /// Use of running attempts that is counted already.
    running: BTreeMap<(String, i64), Use>,
    /// Known namespaces.
    namespaces: BTreeSet<String>,
    /// Known GPU types.
    types: BTreeSet<String>,
    /// Joules and cost by namespace and GPU type.
    energy: BTreeMap<(String, String), (Sum, Sum)>,
    /// Cost by namespace.
    lateness: BTreeMap<String, f64>,
}

/// `name`, or [`OTHER`] if it is new and `known` has `most` entries already.
pub(super) fn bounded(name: &str, known: &mut BTreeSet<String>, most: usize) -> String {
    if !known.contains(name) {
        if known.len() >= most {
            return OTHER.to_owned();
        }
        known.insert(name.to_owned());
    }
    name.to_owned()
}

fn difference(before: Use, now: Use) -> Use {
    (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1))
}

impl Totals {
    /// This process is the leader from now on.
    pub fn lead(&mut self, now: Timestamp) {
        self.since = Some(now);
    }

    /// Records a running attempt's use so far.
    pub fn running(&mut self, attempt: &Attempt, used: Use) {
        let key = (attempt.uid.clone(), attempt.attempt);
        let before =
            self.running.get(&key).copied().unwrap_or_else(|| self.use_before_leading(attempt, used));
        self.add(&attempt.namespace, &attempt.gpu_type, difference(before, used));
        self.running.insert(key, used);
    }

    /// Records an ended attempt's use.
    pub fn ended(&mut self, attempt: &Attempt, used: Use) {
        let known = self.running.remove(&(attempt.uid.clone(), attempt.attempt));
        let before = known.unwrap_or_else(|| self.use_before_leading(attempt, used));
        self.add(&attempt.namespace, &attempt.gpu_type, difference(before, used));
    }

    /// Adds a correction, which may be negative, for an ended attempt.
    pub fn corrected(&mut self, namespace: &str, gpu_type: &str, more: Use) {
        self.add(namespace, gpu_type, more);
    }

    /// Adds the cost of lateness and turnaround of an ended job, millionths.
    pub fn late(&mut self, namespace: &str, micros: i64) {
        let namespace = bounded(namespace, &mut self.namespaces, MAX_NAMESPACES);
        *self.lateness.entry(namespace).or_default() += micros.max(0) as f64 / 1e6;
    }

    /// Drops attempts that no longer run: their jobs were deleted.
    pub fn keep(&mut self, running: &BTreeSet<(String, i64)>) {
        self.running.retain(|key, _| running.contains(key));
    }

    /// Joules and cost by namespace and GPU type.
    pub fn energy(&self) -> impl Iterator<Item = (&(String, String), f64, f64)> {
        self.energy.iter().map(|(key, (joules, money))| (key, joules.shown, money.shown))
    }

    /// Cost of lateness and turnaround of ended jobs by namespace, in units of the tariff's money. Of namespaces with
    /// unfinished jobs from 0 on, or the first job that ends would not count as an increase. A job that waits takes no place
    /// of those whose jobs run or end: it is shown where one is left.
    pub fn lateness(&self, unfinished: &BTreeSet<String>) -> BTreeMap<String, f64> {
        let mut shown = self.namespaces.clone();
        let zeros = unfinished.iter().map(|namespace| (bounded(namespace, &mut shown, MAX_NAMESPACES), 0.0));
        let mut all: BTreeMap<String, f64> = zeros.collect();
        all.extend(self.lateness.iter().map(|(namespace, money)| (namespace.clone(), *money)));
        all
    }

    /// The part of a newly seen attempt's use that is not counted here.
    fn use_before_leading(&self, attempt: &Attempt, used: Use) -> Use {
        let before_us = attempt.started.zip(self.since).is_some_and(|(started, since)| started < since);
        if before_us { used } else { (0, 0) }
    }

    fn add(&mut self, namespace: &str, gpu_type: &str, more: Use) {
        let key = self.key(namespace, gpu_type);
        let (joules, money) = self.energy.entry(key).or_default();
        joules.add(more.0 as f64);
        money.add(more.1 as f64 / 1e6);
    }

    fn key(&mut self, namespace: &str, gpu_type: &str) -> (String, String) {
        let wanted = (namespace.to_owned(), gpu_type.to_owned());
        if self.energy.contains_key(&wanted) {
            return wanted;
        }
        let gpu_type = bounded(gpu_type, &mut self.types, MAX_TYPES);
        if self.energy.len() >= MAX_PAIRS {
            return (OTHER.to_owned(), gpu_type);
        }
        (bounded(namespace, &mut self.namespaces, MAX_NAMESPACES), gpu_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn attempt(uid: &str, number: i64, started: i64) -> Attempt {
        Attempt {
            uid: uid.into(),
            attempt: number,
            namespace: "team".into(),
            gpu_type: "A".into(),
            started: Some(at(started)),
        }
    }

    fn joules(totals: &Totals) -> f64 {
        totals.energy().map(|(_, joules, _)| joules).sum()
    }

    #[test]
    fn what_is_counted_while_it_runs_is_not_counted_again_at_the_end() {
        let mut totals = Totals::default();
        totals.lead(at(0));
        totals.running(&attempt("a", 1, 10), (100, 2_000_000));
        totals.running(&attempt("a", 1, 10), (150, 3_000_000));
        assert_eq!(joules(&totals), 150.0);
        totals.ended(&attempt("a", 1, 10), (400, 5_000_000));
        totals.ended(&attempt("b", 1, 20), (50, 0));
        let all: Vec<_> = totals.energy().map(|(_, joules, money)| (joules, money)).collect();
        assert_eq!(all, [(450.0, 5.0)]);
    }

    #[test]
    fn where_less_was_used_than_was_thought_the_counter_stands_still() {
        let mut totals = Totals::default();
        totals.running(&attempt("a", 1, 10), (100, 0));
        totals.ended(&attempt("a", 1, 10), (70, 0));
        assert_eq!(joules(&totals), 100.0);
        totals.corrected("team", "A", (-10, 0));
        totals.ended(&attempt("b", 1, 10), (30, 0));
        assert_eq!(joules(&totals), 100.0);
        totals.ended(&attempt("c", 1, 10), (30, 0));
        assert_eq!(joules(&totals), 120.0);
    }

    #[test]
    fn what_was_used_under_the_leader_before_is_not_counted() {
        let mut totals = Totals::default();
        totals.lead(at(100));
        totals.running(&attempt("a", 1, 10), (1_000, 0));
        totals.ended(&attempt("b", 1, 10), (1_000, 0));
        assert_eq!(joules(&totals), 0.0);
        totals.ended(&attempt("a", 1, 10), (1_200, 0));
        assert_eq!(joules(&totals), 200.0);
    }

    #[test]
    fn jobs_that_were_deleted_leave_nothing_behind_but_the_sum() {
        let mut totals = Totals::default();
        totals.running(&attempt("a", 1, 10), (100, 0));
        totals.keep(&BTreeSet::new());
        assert!(totals.running.is_empty());
        assert_eq!(joules(&totals), 100.0);
    }

    #[test]
    fn names_beyond_the_bound_are_counted_together() {
        let mut totals = Totals::default();
        for number in 0..5_000 {
            let mut attempt = attempt(&format!("u{number}"), 1, 10);
            attempt.namespace = format!("team-{}", number % 400);
            attempt.gpu_type = format!("type-{}", number % 37);
            totals.ended(&attempt, (1, 0));
            totals.late(&attempt.namespace, 1_000_000);
        }
        assert_eq!(joules(&totals), 5_000.0);
        assert!(totals.energy.len() <= MAX_PAIRS + MAX_TYPES + 1, "{}", totals.energy.len());
        let lateness = totals.lateness(&BTreeSet::new());
        assert_eq!(lateness.len(), MAX_NAMESPACES + 1);
        assert_eq!(lateness.values().sum::<f64>(), 5_000.0);
        assert!(totals.energy.keys().any(|(namespace, _)| namespace == OTHER));
    }
}
