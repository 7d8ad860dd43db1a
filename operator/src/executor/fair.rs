//! The order of jobs: the namespace with the fewest jobs in progress is next, of several in turn; first in first out within
//! a namespace.
//!
//! A namespace with ten thousand queued jobs delays another namespace's job by one step. Where its steps are slow, others
//! have a quarter of the workers at once, and as many as it has a little later.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Bound;

use andreas_runtime::watch::ObjectKey;

/// Jobs to be stepped and jobs in progress.
#[derive(Debug)]
pub struct FairQueue {
    /// Queued names by namespace, oldest first.
    queues: BTreeMap<String, VecDeque<String>>,
    waiting: HashSet<ObjectKey>,
    in_flight: HashSet<ObjectKey>,
    in_flight_of: HashMap<String, usize>,
    /// The last served namespace.
    last: String,
    /// Most jobs in progress.
    workers: usize,
    /// Most jobs in progress of one namespace.
    most: usize,
    /// The last workers, which are for namespaces without any.
    reserve: usize,
}

impl FairQueue {
    /// An empty queue for so many jobs in progress. A namespace can always have one of them.
    pub fn new(workers: usize) -> Self {
        Self {
            queues: BTreeMap::new(),
            waiting: HashSet::new(),
            in_flight: HashSet::new(),
            in_flight_of: HashMap::new(),
            last: String::new(),
            workers,
            most: workers * 3 / 4,
            reserve: workers / 8,
        }
    }

    /// Queues the job; no effect if it is queued already.
    pub fn push(&mut self, job: ObjectKey) {
        if self.waiting.insert(job.clone()) {
            self.queues.entry(job.namespace).or_default().push_back(job.name);
        }
    }

    /// Takes the next job; it is in progress from now on. `None` if all queued jobs are in progress, or as many jobs are as may
    /// be.
    pub fn take(&mut self) -> Option<ObjectKey> {
        let after = (Bound::Excluded(self.last.as_str()), Bound::Unbounded);
        let up_to = (Bound::Unbounded, Bound::Included(self.last.as_str()));
        let turns = self.queues.range::<str, _>(after).chain(self.queues.range::<str, _>(up_to));
        let mut next: Option<(usize, &str, usize)> = None;
        for (namespace, names) in turns {
            let mine = self.in_flight_of.get(namespace).copied().unwrap_or(0);
            if next.is_none_or(|(fewest, ..)| mine < fewest)
                && let Some(at) = self.first_of(namespace, names, mine)
            {
                next = Some((mine, namespace.as_str(), at));
            }
            if mine == 0 {
                break;
            }
        }
        let (_, namespace, at) = next?;
        let namespace = namespace.to_owned();
        let names = self.queues.get_mut(&namespace)?;
        let name = names.remove(at)?;
        if names.is_empty() {
            self.queues.remove(&namespace);
        }
        let job = ObjectKey { namespace: namespace.clone(), name };
        self.waiting.remove(&job);
        self.in_flight.insert(job.clone());
        *self.in_flight_of.entry(namespace.clone()).or_default() += 1;
        self.last = namespace;
        Some(job)
    }

    /// The first of these that is not in progress, if the namespace, of which so many are, may have one now.
    fn first_of(&self, namespace: &str, names: &VecDeque<String>, mine: usize) -> Option<usize> {
        let kept = if mine > 0 { self.reserve } else { 0 };
        if self.in_flight.len() + kept >= self.workers || (mine > 0 && mine >= self.most) {
            return None;
        }
        names.iter().position(|name| {
            !self.in_flight.contains(&ObjectKey { namespace: namespace.to_owned(), name: name.clone() })
        })
    }

    /// The job is no longer in progress.
    pub fn done(&mut self, job: &ObjectKey) {
        if self.in_flight.remove(job)
            && let Some(count) = self.in_flight_of.get_mut(&job.namespace)
        {
            *count -= 1;
            if *count == 0 {
                self.in_flight_of.remove(&job.namespace);
            }
        }
    }

    /// Number of queued jobs.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl Extend<ObjectKey> for FairQueue {
    fn extend<I: IntoIterator<Item = ObjectKey>>(&mut self, jobs: I) {
        jobs.into_iter().for_each(|job| self.push(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key_in as key;

    fn take(queue: &mut FairQueue) -> Option<String> {
        queue.take().map(|job| job.to_string())
    }

    #[test]
    fn a_namespace_with_ten_thousand_jobs_delays_anothers_by_one() {
        let mut queue = FairQueue::new(32);
        queue.extend((0..10_000).map(|n| key("a", n)));
        assert_eq!(take(&mut queue).as_deref(), Some("a/0"));
        queue.push(key("z", "urgent"));
        queue.push(key("m", "other"));
        let next: Vec<_> = (0..4).filter_map(|_| take(&mut queue)).collect();
        assert_eq!(next, ["m/other", "z/urgent", "a/1", "a/2"]);
    }

    #[test]
    fn within_a_namespace_the_job_that_waited_longest_is_next() {
        let mut queue = FairQueue::new(32);
        queue.extend(["z", "a", "m", "a"].map(|name| key("team", name)));
        let order: Vec<_> = std::iter::from_fn(|| take(&mut queue)).collect();
        assert_eq!(order, ["team/z", "team/a", "team/m"]);
    }

    #[test]
    fn busy_namespaces_never_have_all_workers() {
        let mut queue = FairQueue::new(16);
        queue.extend((0..20).map(|n| key("a", n)));
        let first: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        assert_eq!(first.len(), 12);
        queue.extend((0..20).map(|n| key("b", n)));
        let second: Vec<_> = std::iter::from_fn(|| take(&mut queue)).collect();
        assert_eq!(second, ["b/0", "b/1"]);
        queue.extend(["c", "d", "e"].map(|namespace| key(namespace, 0)));
        let others: Vec<_> = std::iter::from_fn(|| take(&mut queue)).collect();
        assert_eq!(others, ["c/0", "d/0"], "a second one that is busy leaves room as well");
        assert_eq!((queue.waiting(), queue.in_flight.len()), (27, 16));
        for job in &first {
            queue.done(job);
        }
        let next: Vec<_> = std::iter::from_fn(|| take(&mut queue)).collect();
        assert_eq!(next.len(), 10, "all go on");
        assert_eq!(next[..4], ["e/0", "a/12", "a/13", "b/2"], "whoever has the fewest goes first");
    }

    #[test]
    fn a_namespace_with_slow_steps_leaves_a_quarter_of_the_workers_at_once_and_half_of_them_soon() {
        let mut queue = FairQueue::new(64);
        queue.extend((0..300).map(|n| key("slow", n)));
        let slow: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        queue.extend((0..300).map(|n| key("b", n)));
        let quick: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        assert_eq!((slow.len(), quick.len()), (48, 8), "the last eight are for namespaces without any");
        // Whichever step ends, the other namespace takes its place, as long as it has fewer.
        for job in quick.iter().take(4).chain(slow.iter().take(10)) {
            queue.done(job);
            assert_eq!(queue.take().map(|next| next.namespace).as_deref(), Some("b"));
        }
        assert_eq!((queue.in_flight_of["slow"], queue.in_flight_of["b"]), (38, 18));
    }

    #[test]
    fn a_job_in_hand_is_not_taken_a_second_time_and_not_forgotten() {
        let mut queue = FairQueue::new(8);
        queue.push(key("a", "x"));
        let job = queue.take().expect("a job");
        queue.push(job.clone());
        queue.push(key("a", "y"));
        assert_eq!((take(&mut queue).as_deref(), take(&mut queue)), (Some("a/y"), None));
        queue.done(&job);
        assert_eq!(take(&mut queue).as_deref(), Some("a/x"));
    }
}
