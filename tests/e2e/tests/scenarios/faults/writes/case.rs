//! The scenarios whose writes are interrupted: what is submitted, what is done while it runs, how it must end.

use std::time::{Duration, Instant};

use andreas_api::phase::{Outcome, Phase};
use andreas_e2e::adoption::workload;
use andreas_e2e::cluster::Cluster;
use andreas_e2e::job::{Job, job};
use andreas_e2e::seen::{ClusterHistory, describe};
use anyhow::{Result, bail, ensure};
use serde_json::json;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunKind {
    /// A gang that runs from apply to success.
    Straight,
    /// A run that is stopped with a checkpoint and goes on as a gang on other nodes.
    Move,
    /// A gang of which one member fails once.
    GangFailure,
    /// A run that is deleted.
    Delete,
    /// A suspended Job whose two pods are let onto two nodes.
    Adopted,
}

impl RunKind {
    pub const ALL: [Self; 5] = [Self::Straight, Self::Move, Self::GangFailure, Self::Delete, Self::Adopted];

    async fn submit(self, c: &Cluster, namespace: &str) -> Result<()> {
        if self == Self::Adopted {
            c.apply(&workload("Job", "j").namespace(namespace).pods(2, 1).epochs(8, 0.25).build()).await?;
            return Ok(());
        }
        c.submit(&self.job(namespace)).await
    }

    fn job(self, namespace: &str) -> Job {
        // Progress is written when it comes; without it the writes are the same each time.
        let base = job("j").namespace(namespace).env("TRAINER_NO_PROGRESS", 1);
        match self {
            Self::Straight | Self::Adopted => base.gpus(2, 2).epochs(4, 0.25),
            // Its edit comes once it is seen to run, which may be late.
            Self::Move => base.gpus(1, 1).epochs(80, 0.25).checkpoint(5).stays_at(0.3),
            Self::GangFailure => {
                base.gpus(2, 2).epochs(6, 0.25).env("TRAINER_FAIL_AT", 0.4).env("TRAINER_FAIL_ATTEMPTS", 1)
            }
            Self::Delete => base.gpus(1, 1).epochs(1000, 0.5),
        }
    }
}

/// One scenario, run in a namespace of its own.
#[derive(Clone, Debug)]
pub struct Case {
    pub kind: RunKind,
    pub namespace: String,
    /// The write that is interrupted, from 1.
    pub write: u64,
    acted: bool,
}

impl Case {
    pub fn new(kind: RunKind, what: &str, write: u64) -> Self {
        let kind_name = format!("{kind:?}").to_lowercase();
        Self { kind, namespace: format!("{kind_name}-{what}-{write}"), write, acted: false }
    }

    /// The TrainingJob, which stands for the Job that is adopted.
    fn key(&self) -> String {
        let name = if self.kind == RunKind::Adopted { "job-j" } else { "j" };
        format!("{}/{name}", self.namespace)
    }

    pub async fn begin(&self, c: &Cluster) -> Result<()> {
        c.make_namespace(&self.namespace).await?;
        self.kind.submit(c, &self.namespace).await
    }

    pub fn has_ended(&self, seen: &ClusterHistory) -> bool {
        let Some(view) = seen.jobs.get(&self.key()) else { return false };
        match self.kind {
            RunKind::Delete => {
                let in_namespace = |p: &&andreas_e2e::seen::PodView| {
                    p.pod.metadata.namespace.as_deref() == Some(self.namespace.as_str())
                };
                view.deleted && seen.pods.values().filter(in_namespace).all(|p| !p.is_live())
            }
            _ => matches!(seen.phase(&self.key()), Phase::Succeeded | Phase::Failed),
        }
    }

    /// The end is that of an undisturbed run.
    pub fn check(&self, c: &Cluster) -> Result<()> {
        let seen = c.observer.seen();
        let status = seen.status(&self.key());
        let outcomes: Vec<Outcome> = status.history.iter().map(|attempt| attempt.outcome).collect();
        let expected = match self.kind {
            RunKind::Delete => return Ok(()),
            RunKind::Straight | RunKind::Adopted => vec![Outcome::Finished],
            RunKind::Move => vec![Outcome::Stopped, Outcome::Finished],
            RunKind::GangFailure => vec![Outcome::UserFailure, Outcome::Finished],
        };
        ensure!(
            status.phase == Phase::Succeeded && outcomes == expected,
            "{}: {:?} with {outcomes:?} instead of {expected:?}",
            self.namespace,
            status.phase
        );
        ensure!(status.attempts == i64::try_from(expected.len())?, "{}: {status:?}", self.namespace);
        ensure!(status.cluster_failures == 0, "{}: {:?}", self.namespace, status.history);
        ensure!(
            status.start_time.is_some() && status.display.duration.is_some(),
            "{}: {status:?}",
            self.namespace
        );
        Ok(())
    }
}

/// Does what a scenario wants done once its job runs.
pub async fn act(c: &Cluster, cases: &mut [Case]) -> Result<()> {
    for case in cases.iter_mut().filter(|case| !case.acted) {
        if c.observer.seen().phase(&case.key()) != Phase::Running {
            continue;
        }
        case.acted = true;
        match case.kind {
            RunKind::Straight | RunKind::GangFailure | RunKind::Adopted => {}
            RunKind::Move => {
                c.edit(&case.key(), &json!({"gpus": {"min": 2, "max": 2, "maxNodes": 2}})).await?;
            }
            RunKind::Delete => {
                c.kubectl(&format!("delete trainingjob j -n {} --wait=false", case.namespace)).await?;
            }
        }
    }
    Ok(())
}

/// Runs the scenarios to their ends.
pub async fn drive(c: &mut Cluster, cases: &mut [Case], limit: Duration) -> Result<()> {
    let end = Instant::now() + limit;
    loop {
        act(c, cases).await?;
        let open: Vec<String> = {
            let seen = c.observer.seen();
            cases.iter().filter(|case| !case.has_ended(&seen)).map(Case::key).collect()
        };
        if open.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("not ended: {open:?}; seen last:\n{}", describe(&c.observer.seen()));
        }
        c.observer.changed().await;
    }
}
