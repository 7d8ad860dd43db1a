//! Energy and cost by namespace and GPU type, as counters: they never fall, even if jobs are deleted.
//!
//! A running attempt is counted at each scrape by its prediction. At its end, the value in its status counts;
//! late measurements are added. If less was measured than predicted, the counter stays constant until the
//! true value catches up. Use before this process was the leader is not counted: the previous leader counted
//! it. What is used while nobody leads is in the bills of the jobs alone.

use std::collections::{BTreeMap, BTreeSet};

use andreas_cluster::energy::bill::Bill;
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

/// Energy and cost of a namespace on a GPU type.
#[derive(Clone, Copy, Debug, Default)]
struct Energy {
    joules: Sum,
    host_joules: Sum,
    /// Of both.
    cost: Sum,
}

/// Energy and cost as exposed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shown {
    /// Energy of GPUs, J.
    pub joules: f64,
    /// Share of hosts' energy, J.
    pub host_joules: f64,
    /// Price of both, in units of the tariff's money.
    pub cost: f64,
}

/// Energy and cost used.
#[derive(Debug, Default)]
pub struct Totals {
    /// Since when this process is the leader.
    since: Option<Timestamp>,
    /// Use of running attempts that is counted already.
    running: BTreeMap<(String, i64), Bill>,
    /// Attempts that have ended, and that a view from before may still have.
    ended: BTreeSet<(String, i64)>,
    /// Known namespaces.
    namespaces: BTreeSet<String>,
    /// Known GPU types.
    types: BTreeSet<String>,
    /// By namespace and GPU type.
    energy: BTreeMap<(String, String), Energy>,
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

/// What came on top; negative where it has become less.
pub(super) fn difference(before: Bill, now: Bill) -> Bill {
    Bill {
        joules: now.joules.saturating_sub(before.joules),
        micros: now.micros.saturating_sub(before.micros),
        host_joules: now.host_joules.saturating_sub(before.host_joules),
        host_micros: now.host_micros.saturating_sub(before.host_micros),
    }
}

impl Totals {
    /// This process is the leader from now on.
    pub fn lead(&mut self, now: Timestamp) {
        self.since = Some(now);
    }

    /// Records a running attempt's use so far.
    pub fn running(&mut self, attempt: &Attempt, used: Bill) {
        let key = (attempt.uid.clone(), attempt.attempt);
        if self.ended.contains(&key) {
            return;
        }
        let before =
            self.running.get(&key).copied().unwrap_or_else(|| self.use_before_leading(attempt, used));
        self.add(&attempt.namespace, &attempt.gpu_type, difference(before, used));
        self.running.insert(key, used);
    }

    /// Records an ended attempt's use.
    pub fn ended(&mut self, attempt: &Attempt, used: Bill) {
        let key = (attempt.uid.clone(), attempt.attempt);
        let known = self.running.remove(&key);
        // Only a scrape shows running ones, and only the next one forgets those that have ended.
        if known.is_some() {
            self.ended.insert(key);
        }
        let before = known.unwrap_or_else(|| self.use_before_leading(attempt, used));
        self.add(&attempt.namespace, &attempt.gpu_type, difference(before, used));
    }

    /// Adds a correction, which may be negative, for an ended attempt.
    pub fn corrected(&mut self, namespace: &str, gpu_type: &str, more: Bill) {
        self.add(namespace, gpu_type, more);
    }

    /// Adds the cost of lateness and turnaround of an ended job, millionths.
    pub fn late(&mut self, namespace: &str, micros: i64) {
        let namespace = bounded(namespace, &mut self.namespaces, MAX_NAMESPACES);
        *self.lateness.entry(namespace).or_default() += micros.max(0) as f64 / 1e6;
    }

    /// Drops attempts that no longer run: their jobs were deleted.
    pub fn keep(&mut self, running: &BTreeSet<(String, i64)>) {
        self.ended.retain(|key| running.contains(key));
        self.running.retain(|key, _| running.contains(key));
    }

    /// Joules and cost by namespace and GPU type.
    pub fn energy(&self) -> impl Iterator<Item = (&(String, String), Shown)> {
        self.energy.iter().map(|(key, sums)| {
            let Energy { joules, host_joules, cost } = sums;
            (key, Shown { joules: joules.shown, host_joules: host_joules.shown, cost: cost.shown })
        })
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
    fn use_before_leading(&self, attempt: &Attempt, used: Bill) -> Bill {
        let before_us = attempt.started.zip(self.since).is_some_and(|(started, since)| started < since);
        if before_us { used } else { Bill::default() }
    }

    fn add(&mut self, namespace: &str, gpu_type: &str, more: Bill) {
        let key = self.key(namespace, gpu_type);
        let sums = self.energy.entry(key).or_default();
        sums.joules.add(more.joules as f64);
        sums.host_joules.add(more.host_joules as f64);
        sums.cost.add(more.micros.saturating_add(more.host_micros) as f64 / 1e6);
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

    fn used(joules: i64, micros: i64) -> Bill {
        Bill { joules, micros, ..Bill::default() }
    }

    fn joules(totals: &Totals) -> f64 {
        totals.energy().map(|(_, shown)| shown.joules).sum()
    }

    #[test]
    fn what_is_counted_while_it_runs_is_not_counted_again_at_the_end() {
        let mut totals = Totals::default();
        totals.lead(at(0));
        totals.running(&attempt("a", 1, 10), used(100, 2_000_000));
        totals.running(&attempt("a", 1, 10), used(150, 3_000_000));
        assert_eq!(joules(&totals), 150.0);
        totals.ended(&attempt("a", 1, 10), used(400, 5_000_000));
        totals.ended(&attempt("b", 1, 20), used(50, 0));
        // Its share of a host, and the price of both.
        totals.ended(&attempt("c", 1, 20), Bill { host_joules: 40, host_micros: 1_000_000, ..used(0, 0) });
        let all: Vec<_> = totals.energy().map(|(_, shown)| shown).collect();
        assert_eq!(all, [Shown { joules: 450.0, host_joules: 40.0, cost: 6.0 }]);
    }

    #[test]
    fn where_less_was_used_than_was_thought_the_counter_stands_still() {
        let mut totals = Totals::default();
        totals.running(&attempt("a", 1, 10), used(100, 0));
        totals.ended(&attempt("a", 1, 10), used(70, 0));
        assert_eq!(joules(&totals), 100.0);
        totals.corrected("team", "A", used(-10, 0));
        totals.ended(&attempt("b", 1, 10), used(30, 0));
        assert_eq!(joules(&totals), 100.0);
        totals.ended(&attempt("c", 1, 10), used(30, 0));
        assert_eq!(joules(&totals), 120.0);
    }

    #[test]
    fn what_was_used_under_the_leader_before_is_not_counted() {
        let mut totals = Totals::default();
        totals.lead(at(100));
        totals.running(&attempt("a", 1, 10), used(1_000, 0));
        totals.ended(&attempt("b", 1, 10), used(1_000, 0));
        assert_eq!(joules(&totals), 0.0);
        totals.ended(&attempt("a", 1, 10), used(1_200, 0));
        assert_eq!(joules(&totals), 200.0);
    }

    #[test]
    fn jobs_that_were_deleted_leave_nothing_behind_but_the_sum() {
        let mut totals = Totals::default();
        totals.running(&attempt("a", 1, 10), used(100, 0));
        totals.keep(&BTreeSet::new());
        assert!(totals.running.is_empty());
        assert_eq!(joules(&totals), 100.0);
    }

    #[test]
    fn an_attempt_that_ends_during_a_scrape_counts_once() {
        let mut totals = Totals::default();
        totals.lead(at(0));
        totals.running(&attempt("a", 1, 10), used(100, 0));
        // A scrape has taken its view; the end is written before it is encoded.
        totals.ended(&attempt("a", 1, 10), used(120, 0));
        for _ in 0..2 {
            totals.running(&attempt("a", 1, 10), used(110, 0));
            totals.keep(&BTreeSet::from([("a".to_owned(), 1)]));
            assert_eq!(joules(&totals), 120.0);
        }
        totals.keep(&BTreeSet::new());
        assert!(totals.ended.is_empty());
    }

    #[test]
    fn names_beyond_the_bound_are_counted_together() {
        let mut totals = Totals::default();
        for number in 0..5_000 {
            let mut attempt = attempt(&format!("u{number}"), 1, 10);
            attempt.namespace = format!("team-{}", number % 400);
            attempt.gpu_type = format!("type-{}", number % 37);
            totals.ended(&attempt, used(1, 0));
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
