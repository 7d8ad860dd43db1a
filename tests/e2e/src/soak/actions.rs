//! What may happen in a soak, drawn one by one. What lasts (a silent node, a frozen program) is mended when its time is over,
//! while other things happen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use andreas_api::phase::Phase;
use andreas_testbed::faults::RuleId;
use anyhow::{Context as _, Result};

use super::Soak;
use super::report::Report;
use super::rng::SeededRng;
use super::usage::Usage;
use crate::cluster::Cluster;
use crate::job::Job;

/// Namespaces of the jobs.
pub(super) const NAMESPACES: [&str; 3] = ["red", "green", "blue"];

/// Lines of what happened that a failure tells.
const LAST_HAPPENED: usize = 100;

/// A job whose program fails.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failing {
    /// Its first attempts, this many of them, fail.
    pub attempts: u64,
    /// `spec.retries`.
    pub retries: u64,
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Submit,
    Reweigh,
    Resize,
    SuspendOrResume,
    Delete,
    DeletePod,
    DeletePodByForce,
    KillOperator,
    KillExtender,
    KillScheduler,
    KillApiServer,
    KillAgent,
    Freeze,
    Silence,
    Reboot,
    DeleteNode,
    SetClock,
    Fault,
}

/// Each with its weight, and the name it has in the report.
const ACTIONS: [(Action, u64, &str); 18] = [
    (Action::Submit, 40, "submissions"),
    (Action::Reweigh, 8, "weights edited"),
    (Action::Resize, 5, "sizes edited"),
    (Action::SuspendOrResume, 6, "suspends and resumes"),
    (Action::Delete, 4, "deletions"),
    (Action::DeletePod, 3, "pods deleted"),
    (Action::DeletePodByForce, 5, "pods deleted by force"),
    (Action::KillOperator, 5, "operator kills"),
    (Action::KillExtender, 3, "extender kills"),
    (Action::KillScheduler, 2, "scheduler kills"),
    (Action::KillApiServer, 1, "API server kills"),
    (Action::KillAgent, 4, "agent kills"),
    (Action::Freeze, 3, "programs frozen"),
    (Action::Silence, 4, "nodes silent"),
    (Action::Reboot, 2, "nodes rebooted"),
    (Action::DeleteNode, 2, "nodes deleted"),
    (Action::SetClock, 5, "clock steps"),
    (Action::Fault, 14, "faults of calls"),
];

/// The action that ends a lasting fault.
#[derive(Clone, Debug)]
pub(super) enum Repair {
    StartExtender,
    StartScheduler,
    ResumeOperator,
    ResumeExtender,
    Back(String),
    Booted(String),
    Restore(String),
    LetIn,
}

/// Runs the drawn actions and keeps the repairs that are due later.
pub(super) struct Actor {
    pub rng: SeededRng,
    start: Instant,
    soak: Soak,
    /// Memory and open files of our programs.
    pub usage: Usage,
    /// Actions and repairs with their second; printed when they happen, where that is asked.
    happened: Vec<String>,
    /// GPU nodes.
    pub nodes: Vec<String>,
    /// Nodes that are silent, booting or deleted now.
    pub away: BTreeSet<String>,
    /// Nodes of pods that were deleted by force, with the time from which the node may fall silent again.
    pub forced: BTreeMap<String, Instant>,
    /// Jobs as they were submitted.
    pub jobs: BTreeMap<String, Job>,
    /// Those that were made to fail.
    pub failing: BTreeMap<String, Failing>,
    pub suspended: BTreeSet<String>,
    pub deleted: BTreeSet<String>,
    pub rules: Vec<RuleId>,
    repairs: Vec<(Instant, Repair)>,
    done: BTreeMap<&'static str, usize>,
}

impl Actor {
    pub async fn new(c: &Cluster, soak: Soak) -> Result<Self> {
        Self::make_namespaces(c).await?;
        let nodes = crate::nodes::client(&c.testbed).nodes().await?;
        Ok(Self {
            rng: SeededRng::new(soak.seed),
            start: Instant::now(),
            soak,
            usage: Usage::default(),
            happened: Vec::new(),
            nodes: nodes.into_iter().map(|node| node.name).collect(),
            away: BTreeSet::new(),
            forced: BTreeMap::new(),
            jobs: BTreeMap::new(),
            failing: BTreeMap::new(),
            suspended: BTreeSet::new(),
            deleted: BTreeSet::new(),
            rules: Vec::new(),
            repairs: Vec::new(),
            done: BTreeMap::new(),
        })
    }

    pub fn pause(&mut self, (low, high): (u64, u64)) -> Duration {
        Duration::from_millis(self.rng.between(low, high))
    }

    /// Jobs that shall end.
    pub fn open(&self, c: &Cluster) -> Vec<String> {
        let seen = c.observer.seen();
        let ended = |key: &String| matches!(seen.phase(key), Phase::Succeeded | Phase::Failed);
        self.jobs.keys().filter(|key| !self.deleted.contains(*key) && !ended(key)).cloned().collect()
    }

    /// Draws one action and does it.
    pub async fn act(&mut self, c: &Cluster) -> Result<()> {
        let total = ACTIONS.iter().map(|(_, weight, _)| weight).sum();
        let mut drawn = self.rng.between(1, total);
        for (action, weight, name) in ACTIONS {
            if drawn > weight {
                drawn -= weight;
                continue;
            }
            if let Some(what) = self.perform(c, action).await.with_context(|| format!("{action:?}"))? {
                self.note(&format!("{action:?} {what}"));
                *self.done.entry(name).or_insert(0) += 1;
            }
            break;
        }
        Ok(())
    }

    fn note(&mut self, what: &str) {
        let line = format!("{:7.1} s {what}", self.start.elapsed().as_secs_f64());
        if self.soak.verbose {
            println!("soak: {line}");
        }
        self.happened.push(line);
    }

    /// The last that happened, a line each.
    pub fn last_happened(&self) -> String {
        self.happened[self.happened.len().saturating_sub(LAST_HAPPENED)..].join("\n")
    }

    /// What it was done to. `None`: there was nothing.
    async fn perform(&mut self, c: &Cluster, action: Action) -> Result<Option<String>> {
        match action {
            Action::Submit => self.submit(c).await,
            Action::Reweigh | Action::Resize | Action::SuspendOrResume | Action::Delete => {
                self.change(c, action).await
            }
            Action::DeletePod => self.delete_pod(c).await,
            Action::DeletePodByForce => self.delete_pod_by_force(c).await,
            Action::Fault => self.fault(c).await.map(Some),
            Action::KillOperator | Action::KillExtender | Action::KillAgent | Action::Freeze
                if !self.soak.kills_at(self.start.elapsed()) =>
            {
                Ok(None)
            }
            other => self.break_machine(c, other).await,
        }
    }

    /// Something that happens now is to be mended after this time.
    pub fn mend_after(&mut self, time: Duration, mend: Repair) {
        self.repairs.push((Instant::now() + time, mend));
    }

    /// Mends what is due.
    pub async fn mend_due(&mut self, c: &Cluster) -> Result<()> {
        let now = Instant::now();
        let (due, later): (Vec<_>, _) =
            std::mem::take(&mut self.repairs).into_iter().partition(|(at, _)| *at <= now);
        self.repairs = later;
        for (_, mend) in due {
            self.note(&format!("{mend:?}"));
            self.mend(c, mend).await?;
        }
        Ok(())
    }

    /// Ends all that was done to programs, nodes, clocks and calls, and resumes what was suspended.
    pub async fn mend_all(&mut self, c: &Cluster) -> Result<()> {
        c.faults()?.clear();
        for (_, mend) in std::mem::take(&mut self.repairs) {
            self.mend(c, mend).await?;
        }
        self.right_clocks(c)?;
        for key in std::mem::take(&mut self.suspended) {
            if !self.deleted.contains(&key) {
                c.edit(&key, &serde_json::json!({"suspend": false})).await?;
            }
        }
        Ok(())
    }

    /// What was done and how the jobs ended.
    pub fn fill(&self, c: &Cluster, report: &mut Report) {
        let seen = c.observer.seen();
        report.submitted = self.jobs.len();
        report.deleted = self.deleted.len();
        for key in self.jobs.keys() {
            report.attempts += seen.status(key).attempts;
            let kept = !self.deleted.contains(key);
            report.succeeded += usize::from(kept && seen.phase(key) == Phase::Succeeded);
            report.failed += usize::from(kept && seen.phase(key) == Phase::Failed);
        }
        report.done.clone_from(&self.done);
        if let Ok(faults) = c.faults() {
            report.calls_met = self.rules.iter().map(|rule| faults.met(*rule)).sum();
        }
        report.looks = seen.devices.snapshots;
        report.ran_without_object = seen.devices.ran_without_object.len();
        report.highest_watts = seen.devices.highest_watts;
        report.at_highest.clone_from(&seen.devices.at_highest);
        report.usage = self.usage.to_string();
    }
}
