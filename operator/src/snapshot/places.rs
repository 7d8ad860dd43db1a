//! Which waiting jobs take part in a plan: each namespace's oldest, up to the size limit of a plan.
//!
//! A job that has or is about to get GPUs always takes part. Without a limit one namespace could slow down
//! plans, fill the operator's memory, or make the planner refuse the whole snapshot.

use std::collections::{BTreeMap, BTreeSet};

use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;

/// Maximum waiting jobs of one namespace in a plan.
pub const MAX_WAITING_PER_NAMESPACE: usize = 10_000;
/// Maximum waiting jobs in a plan, shared evenly by the namespaces with more.
pub const MAX_WAITING: usize = 20_000;
// Besides the waiting ones a plan has the jobs that hold GPUs.
const _: () = assert!(2 * MAX_WAITING < andreas_planner::MAX_JOBS);

/// A job that waits to take part in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Older waiting jobs of its namespace.
    pub before: usize,
    /// Jobs of the namespace that take part.
    pub share: usize,
}

impl Queued {
    /// Human-readable text. Rounded, so that it does not change with every ended job.
    pub fn message(self) -> String {
        format!(
            "more than {} jobs of this namespace wait that were made before it; the oldest {} are planned",
            rounded_down(self.before.saturating_sub(1)),
            self.share
        )
    }
}

/// Keeps two digits.
fn rounded_down(number: usize) -> usize {
    let unit = 10_usize.pow(number.checked_ilog10().unwrap_or(0).saturating_sub(1));
    number / unit * unit
}

/// The waiting jobs, given with creation times, that take no part in a plan. The limits are `max_total` jobs and
/// `of_one` per namespace.
pub fn beyond_limits<'a>(
    waiting: impl Iterator<Item = (&'a ObjectKey, Timestamp)>,
    of_one: usize,
    most: usize,
) -> BTreeMap<&'a ObjectKey, Queued> {
    let mut by_namespace: BTreeMap<&str, Vec<(Timestamp, &ObjectKey)>> = BTreeMap::new();
    for (key, made) in waiting {
        by_namespace.entry(&key.namespace).or_default().push((made, key));
    }
    let counts = by_namespace.iter().map(|(namespace, jobs)| (*namespace, jobs.len())).collect();
    let shares = shares(&counts, of_one, most);
    let mut queued = BTreeMap::new();
    for (namespace, mut jobs) in by_namespace {
        let share = shares.get(namespace).copied().unwrap_or(0);
        if jobs.len() <= share {
            continue;
        }
        jobs.sort_unstable();
        let beyond = jobs.into_iter().enumerate().skip(share);
        queued.extend(beyond.map(|(before, (_, key))| (key, Queued { before, share })));
    }
    queued
}

/// Splits `max_total` slots evenly over namespaces, `each` at most. `counts` is the demand per namespace; the
/// result is its number of slots.
fn shares<'a>(counts: &BTreeMap<&'a str, usize>, each: usize, most: usize) -> BTreeMap<&'a str, usize> {
    let mut left = most;
    let mut by_size: BTreeSet<(usize, &str)> =
        counts.iter().map(|(namespace, count)| ((*count).min(each), *namespace)).collect();
    let mut shares = BTreeMap::new();
    while let Some((count, namespace)) = by_size.pop_first() {
        let share = count.min(left / (by_size.len() + 1));
        left -= share;
        shares.insert(namespace, share);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, name: usize) -> ObjectKey {
        ObjectKey { namespace: namespace.into(), name: format!("{name:05}") }
    }

    fn made(second: usize) -> Timestamp {
        Timestamp::from_second(second as i64).expect("a time")
    }

    #[test]
    fn the_oldest_jobs_of_each_namespace_take_part() {
        let keys: Vec<_> = (0..6).map(|n| key("a", n)).chain([key("z", 0)]).collect();
        // Later names were created earlier.
        let waiting = keys.iter().enumerate().map(|(n, key)| (key, made(100 - n)));
        let queued = beyond_limits(waiting, 4, 100);
        assert_eq!(
            queued.into_iter().collect::<Vec<_>>(),
            [(&keys[0], Queued { before: 5, share: 4 }), (&keys[1], Queued { before: 4, share: 4 })]
        );
    }

    #[test]
    fn floods_of_two_namespaces_leave_the_third_its_places() {
        let keys: Vec<_> = ["a", "b", "z"]
            .iter()
            .zip([30, 30, 2])
            .flat_map(|(ns, count)| (0..count).map(move |n| key(ns, n)))
            .collect();
        let queued = beyond_limits(keys.iter().map(|key| (key, made(1))), 20, 22);
        let of = |namespace: &str| queued.keys().filter(|key| key.namespace == namespace).count();
        assert_eq!((of("a"), of("b"), of("z")), (20, 20, 0));
    }

    #[test]
    fn a_plan_never_has_more_waiting_jobs_than_its_limit() {
        let keys: Vec<_> = (0..30).flat_map(|ns| (0..1_000).map(move |n| key(&ns.to_string(), n))).collect();
        let queued =
            beyond_limits(keys.iter().map(|key| (key, made(1))), MAX_WAITING_PER_NAMESPACE, MAX_WAITING);
        assert!(keys.len() - queued.len() <= MAX_WAITING);
    }

    #[test]
    fn the_message_says_how_many_are_before_it() {
        let message = Queued { before: 10_431, share: 10_000 }.message();
        assert_eq!(
            message,
            "more than 10000 jobs of this namespace wait that were made before it; the oldest 10000 are planned"
        );
        assert_eq!([0, 7, 42, 421, 9_999].map(rounded_down), [0, 7, 42, 420, 9_900]);
    }

    #[test]
    fn places_are_shared_evenly_and_what_one_does_not_need_goes_to_the_others() {
        let counts = BTreeMap::from([("few", 10), ("many", 50_000), ("more", 90_000)]);
        let of = |each, most| shares(&counts, each, most);
        assert_eq!(of(10_000, 100_000), BTreeMap::from([("few", 10), ("many", 10_000), ("more", 10_000)]));
        assert_eq!(of(10_000, 10_000), BTreeMap::from([("few", 10), ("many", 4_995), ("more", 4_995)]));
        assert_eq!(of(10_000, 0).values().sum::<usize>(), 0);
    }
}
