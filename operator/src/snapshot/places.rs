//! Which waiting jobs take part in a plan: each namespace's oldest, up to the size limit of a plan.
//!
//! A job that has or is about to get GPUs always takes part. Without a limit one namespace could slow down
//! plans, fill the operator's memory, or make the planner refuse the whole snapshot. Time and memory of a plan grow with the
//! configurations of its jobs: a few hundred bytes and some microseconds for each. And with the nodes that it lists: each
//! different set of selectors, affinity, tolerations and claims is held against each node once, and lists those that it admits.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;

use super::worker::Digest;

/// The limits of a plan.
pub const LIMITS: Limits = Limits {
    jobs: Limit { of_one: 10_000, of_all: 20_000 },
    configurations: Limit { of_one: 600_000, of_all: 1_200_000 },
    listed_nodes: Limit { of_one: 1_000_000, of_all: 2_000_000 },
};
// Besides the waiting ones a plan has the jobs that hold GPUs.
const _: () = assert!(2 * LIMITS.jobs.of_all < andreas_planner::MAX_JOBS);

/// What waiting jobs may take of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Jobs.
    pub jobs: Limit,
    /// Their configurations.
    pub configurations: Limit,
    /// Nodes times different demands on them.
    pub listed_nodes: Limit,
}

/// How much a plan takes.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Of one namespace.
    pub of_one: usize,
    /// Of all, shared evenly by the namespaces with more.
    pub of_all: usize,
}

/// A waiting job.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// The job.
    pub key: &'a ObjectKey,
    /// Its creation.
    pub made: Timestamp,
    /// Its [configurations](super::configurations::configurations).
    pub configurations: usize,
    /// Equal for jobs whose workers demand the same of a node.
    pub demands: Digest,
}

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
            rounded_down(self.share)
        )
    }
}

/// Keeps two digits.
fn rounded_down(number: usize) -> usize {
    let unit = 10_usize.pow(number.checked_ilog10().unwrap_or(0).saturating_sub(1));
    number / unit * unit
}

/// The waiting jobs that take no part in a plan for so many nodes.
pub fn beyond_limits<'a>(
    waiting: impl Iterator<Item = Waiting<'a>>,
    nodes: usize,
    limits: &Limits,
) -> BTreeMap<&'a ObjectKey, Queued> {
    let mut by_namespace: BTreeMap<&str, Vec<Waiting<'a>>> = BTreeMap::new();
    for job in waiting {
        by_namespace.entry(&job.key.namespace).or_default().push(job);
    }
    let sizes: BTreeMap<&str, [usize; 3]> =
        by_namespace.iter().map(|(namespace, jobs)| (*namespace, Size::of(jobs, nodes).0)).collect();
    let shares = [limits.jobs, limits.configurations, limits.listed_nodes].into_iter().enumerate();
    let shares: Vec<_> = shares
        .map(|(what, limit)| {
            shares_of(&sizes.iter().map(|(namespace, size)| (*namespace, size[what])).collect(), limit)
        })
        .collect();
    let mut queued = BTreeMap::new();
    for (namespace, mut jobs) in by_namespace {
        let share = |what: usize| shares[what].get(namespace).copied().unwrap_or(0);
        let within = |size: [usize; 3]| size.iter().enumerate().all(|(what, size)| *size <= share(what));
        if within(sizes[namespace]) {
            continue;
        }
        jobs.sort_unstable_by_key(|job| (job.made, job.key));
        let mut size = Size::default();
        let fits = jobs.iter().take_while(|job| {
            size.add(job, nodes);
            within(size.0)
        });
        // The oldest takes part however large it is: otherwise none of the namespace's ever would.
        let share = fits.count().max(share(0).min(1));
        let beyond = jobs.into_iter().enumerate().skip(share);
        queued.extend(beyond.map(|(before, job)| (job.key, Queued { before, share })));
    }
    queued
}

/// Jobs, configurations and listed nodes of some waiting jobs.
#[derive(Default)]
struct Size([usize; 3], HashSet<Digest>);

impl Size {
    fn of(jobs: &[Waiting<'_>], nodes: usize) -> Self {
        let mut size = Self::default();
        jobs.iter().for_each(|job| size.add(job, nodes));
        size
    }

    fn add(&mut self, job: &Waiting<'_>, nodes: usize) {
        self.0[0] += 1;
        self.0[1] += job.configurations;
        self.0[2] += if self.1.insert(job.demands) { nodes } else { 0 };
    }
}

/// Splits a limit evenly over namespaces. `counts` is the demand per namespace; the result is its share.
fn shares_of<'a>(counts: &BTreeMap<&'a str, usize>, limit: Limit) -> BTreeMap<&'a str, usize> {
    let mut left = limit.of_all;
    let mut by_size: BTreeSet<(usize, &str)> =
        counts.iter().map(|(namespace, count)| ((*count).min(limit.of_one), *namespace)).collect();
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

    fn limit(of_one: usize, of_all: usize) -> Limit {
        Limit { of_one, of_all }
    }

    const ANY: Limit = Limit { of_one: usize::MAX, of_all: usize::MAX };
    const NO_LIMITS: Limits = Limits { jobs: ANY, configurations: ANY, listed_nodes: ANY };

    /// A job of one configuration.
    fn job(key: &ObjectKey, second: usize) -> Waiting<'_> {
        Waiting { key, made: made(second), configurations: 1, demands: [0; 32] }
    }

    #[test]
    fn the_oldest_jobs_of_each_namespace_take_part() {
        let keys: Vec<_> = (0..6).map(|n| key("a", n)).chain([key("z", 0)]).collect();
        // Later names were created earlier.
        let waiting = keys.iter().enumerate().map(|(n, key)| job(key, 100 - n));
        let queued = beyond_limits(waiting, 1, &Limits { jobs: limit(4, 100), ..NO_LIMITS });
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
        let queued = beyond_limits(
            keys.iter().map(|key| job(key, 1)),
            1,
            &Limits { jobs: limit(20, 22), ..NO_LIMITS },
        );
        let of = |namespace: &str| queued.keys().filter(|key| key.namespace == namespace).count();
        assert_eq!((of("a"), of("b"), of("z")), (20, 20, 0));
    }

    #[test]
    fn a_plan_never_has_more_waiting_jobs_than_its_limit() {
        let keys: Vec<_> = (0..30).flat_map(|ns| (0..1_000).map(move |n| key(&ns.to_string(), n))).collect();
        let queued = beyond_limits(keys.iter().map(|key| job(key, 1)), 1_000, &LIMITS);
        assert!(keys.len() - queued.len() <= LIMITS.jobs.of_all);
    }

    #[test]
    fn large_jobs_of_one_namespace_leave_the_others_their_places() {
        let keys: Vec<_> =
            (0..100).map(|n| key("large", n)).chain((0..100).map(|n| key("small", n))).collect();
        let of_configurations =
            |of_one, of_all| Limits { configurations: limit(of_one, of_all), ..NO_LIMITS };
        let of = |key| {
            let configurations = if keys[..100].contains(key) { 50 } else { 2 };
            Waiting { configurations, ..job(key, 1) }
        };
        let queued = beyond_limits(keys.iter().map(of), 1, &of_configurations(1_000, 1_100));
        let left_out: Vec<_> = queued.keys().map(|key| key.namespace.as_str()).collect();
        assert_eq!(left_out, ["large"; 82], "18 of 50 are within 900");
        assert_eq!(queued[&keys[99]], Queued { before: 99, share: 18 });
        // The oldest takes part even if it has more than its namespace's share.
        let queued = beyond_limits(keys.iter().map(of), 1, &of_configurations(40, 80));
        assert_eq!(queued.keys().filter(|key| key.namespace == "large").count(), 99);
    }

    #[test]
    fn nodes_are_listed_once_for_equal_demands_and_no_more_than_the_limit() {
        let keys: Vec<_> = (0..100).map(|n| key("a", n)).collect();
        let limits = Limits { listed_nodes: limit(50_000, 80_000), ..NO_LIMITS };
        let queued = |different: bool| {
            let waiting = keys.iter().enumerate().map(|(n, key)| {
                let demands = if different { [n as u8; 32] } else { [7; 32] };
                Waiting { demands, ..job(key, n) }
            });
            beyond_limits(waiting, 1_000, &limits).len()
        };
        assert_eq!((queued(false), queued(true)), (0, 50));
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
        let of = |each, most| shares_of(&counts, limit(each, most));
        assert_eq!(of(10_000, 100_000), BTreeMap::from([("few", 10), ("many", 10_000), ("more", 10_000)]));
        assert_eq!(of(10_000, 10_000), BTreeMap::from([("few", 10), ("many", 4_995), ("more", 4_995)]));
        assert_eq!(of(10_000, 0).values().sum::<usize>(), 0);
    }
}
