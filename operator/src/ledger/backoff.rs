//! Backoff of namespaces whose pods the API server does not create or bind for reasons unrelated to the pod, such as
//! a failing admission webhook or a time-out.
//!
//! **In**: results of dry runs, creations and bindings. **Out**: until when no job of the namespace is planned
//! ([`Backoff`]). Other namespaces are not affected. A restart clears it, so jobs are retried sooner.

use std::collections::BTreeMap;

use andreas_cluster::instants::after;
use andreas_lifecycle::Backoff;
use jiff::Timestamp;

/// The failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Dry runs get no verdict.
    DryRun,
    /// A gang had GPUs, but its pods could not be created in time.
    Creation,
    /// Its pods could be created and not be bound. No success ends it: pods of the next gang are created as well.
    Binding,
}

impl Cause {
    /// Initial and maximum pause, s. Between two pauses a creation holds GPUs for the policy's
    /// `placementTimeout`; a dry run holds none.
    fn pauses(self) -> (i64, i64) {
        match self {
            Self::DryRun => (1, 300),
            Self::Creation | Self::Binding => (60, 1_800),
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    failures: u32,
    until: Timestamp,
    message: String,
}

/// Namespaces with a backoff.
#[derive(Clone, Debug, Default)]
pub struct Backoffs {
    dry_runs: BTreeMap<String, Entry>,
    creations: BTreeMap<String, Entry>,
    bindings: BTreeMap<String, Entry>,
}

impl Backoffs {
    /// Records a failure with the API server's message. Failures during a backoff are ignored: they began
    /// before it. `true`: the backoff was extended.
    pub fn failed(&mut self, cause: Cause, namespace: &str, message: &str, now: Timestamp) -> bool {
        let (first, longest) = cause.pauses();
        let entries = self.entries(cause);
        entries.retain(|_, entry| after(entry.until, longest) > now);
        let entry = entries.entry(namespace.to_owned()).or_insert_with(|| Entry {
            failures: 0,
            until: Timestamp::MIN,
            message: String::new(),
        });
        message.clone_into(&mut entry.message);
        if entry.until > now {
            return false;
        }
        entry.failures = entry.failures.saturating_add(1);
        let pause = first.saturating_mul(1 << (entry.failures - 1).min(16)).min(longest);
        entry.until = after(now, pause);
        true
    }

    /// Records a success. `true`: it ended the namespace's backoff for this cause.
    pub fn done(&mut self, cause: Cause, namespace: &str) -> bool {
        self.entries(cause).remove(namespace).is_some()
    }

    /// A namespace's current backoff.
    pub fn get(&self, namespace: &str) -> Option<Backoff> {
        let dry_run = self.dry_runs.get(namespace);
        let others = [&self.creations, &self.bindings].into_iter().filter_map(|of| of.get(namespace));
        let held = dry_run.into_iter().chain(others).max_by_key(|entry| entry.until)?;
        Some(Backoff { until: held.until, message: held.message.clone(), untried: dry_run.is_some() })
    }

    /// Backoffs of a cause by namespace.
    fn entries(&mut self, cause: Cause) -> &mut BTreeMap<String, Entry> {
        match cause {
            Cause::DryRun => &mut self.dry_runs,
            Cause::Creation => &mut self.creations,
            Cause::Binding => &mut self.bindings,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn a_namespace_is_held_ever_longer_and_no_other_is() {
        let mut all = Backoffs::default();
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            assert!(all.failed(Cause::Creation, "team", "webhook down", at(now)));
            // Further failures of the same burst are ignored.
            assert!(!all.failed(Cause::Creation, "team", "webhook down", at(now + 1)));
            let until = all.get("team").expect("held").until;
            pauses.push(until.as_second() - at(now).as_second());
            now = until.as_second() - at(0).as_second();
        }
        assert_eq!(pauses, [60, 120, 240, 480, 960, 1_800, 1_800]);
        assert_eq!(all.get("other"), None);
        // A gang with created pods ends it; the next one starts from the initial pause.
        assert!(all.done(Cause::Creation, "team") && !all.done(Cause::Creation, "team"));
        assert_eq!(all.get("team"), None);
        all.failed(Cause::Creation, "team", "webhook down", at(now));
        assert_eq!(all.get("team").expect("held").until, at(now + 60));
    }

    #[test]
    fn pods_that_are_created_say_nothing_of_bindings_that_are_refused() {
        let mut all = Backoffs::default();
        let mut now = 0;
        for pause in [60, 120, 240] {
            assert!(all.failed(Cause::Binding, "team", "denied", at(now)));
            // The pods of the next gang are created, and not bound either.
            now += pause;
            assert_eq!(all.get("team").expect("held").until, at(now));
            all.done(Cause::Creation, "team");
        }
    }

    #[test]
    fn dry_runs_and_creations_are_held_apart() {
        let mut all = Backoffs::default();
        all.failed(Cause::DryRun, "team", "no answer", at(0));
        all.failed(Cause::Creation, "team", "no pods", at(0));
        let held = all.get("team").expect("held");
        assert_eq!((held.until, held.message.as_str(), held.untried), (at(60), "no pods", true));
        // Dry runs are answered again; pods are not created yet.
        all.done(Cause::DryRun, "team");
        assert!(!all.get("team").expect("held").untried);
    }

    #[test]
    fn what_failed_long_ago_is_forgotten() {
        let mut all = Backoffs::default();
        all.failed(Cause::DryRun, "a", "no answer", at(0));
        all.failed(Cause::DryRun, "b", "no answer", at(1_000));
        assert_eq!(all.get("a"), None);
        assert_eq!(all.get("b").expect("held").until, at(1_001));
    }
}
