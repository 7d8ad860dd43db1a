//! The frame of a scenario: a cluster of its own, short words for what is done and awaited, and the checks that
//! every scenario ends with.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use andreas_api::names;
use andreas_api::phase::{Phase, Reason};
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::TrainingJobStatus;
use andreas_testbed::Component;
use anyhow::{Context as _, Result, anyhow, ensure};
use kube::ResourceExt as _;

use crate::cluster::{Cluster, Options};
use crate::install;
use crate::job::Job;
use crate::places;
use crate::seen::{ClusterHistory, PodView, describe};

/// How long a transition may take on a busy, slow machine of two cores. A long limit costs time where something fails, and only there.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a scenario on a cluster that no other uses, then checks what must hold after every scenario. A failure shows the jobs, pods
/// and logs as they were.
///
/// # Errors
/// What the scenario or the checks say.
pub async fn scenario(options: Options, run: impl AsyncFnOnce(&mut Cluster) -> Result<()>) -> Result<()> {
    let _place = places::take(options.heavy).await?;
    let mut cluster = Cluster::start(options).await?;
    let outcome = run(&mut cluster).await;
    let checked = match outcome {
        Ok(()) => what_must_hold(&cluster),
        Err(error) => Err(error),
    };
    if let Err(error) = checked {
        let seen = describe(&cluster.observer.seen());
        let logs = cluster.logs();
        cluster.stop().await;
        // What failed stands first: where a long output is cut, its begin stays.
        return Err(anyhow!("{error:#}\nseen last:\n{seen}\n{logs}"));
    }
    cluster.end().await;
    Ok(())
}

/// Nothing forbidden was seen, and somebody looked; none of our programs panicked; every pod of a TrainingJob was bound by the extender
/// with its allocation.
///
/// # Errors
/// What was seen that must not be.
pub fn what_must_hold(cluster: &Cluster) -> Result<()> {
    let violations: Vec<String> = cluster.observer.seen().violations.iter().cloned().collect();
    ensure!(violations.is_empty(), "{}", violations.join("; "));
    let looks = cluster.observer.seen().devices.snapshots;
    ensure!(looks > 0 || !cluster.is_observed(), "nobody looked at the devices");
    nobody_panicked(cluster)?;
    let partial = cluster.observer.seen().longest_partial_gang;
    if !partial.is_zero() {
        println!("part of a gang for {:.1} s at most", partial.as_secs_f64());
    }
    if cluster.binds_by_extender() {
        let bindings = Bindings::read(cluster)?;
        ensure!(bindings.by_others.is_empty(), "bound by others than the extender: {:?}", bindings.by_others);
        ensure!(
            bindings.without_allocation.is_empty(),
            "bound without an allocation: {:?}",
            bindings.without_allocation
        );
    }
    Ok(())
}

/// What the last words of a Rust program contain that ends by itself.
const PANICS: [&str; 3] = ["panicked at", "has overflowed its stack", "memory allocation of"];

/// No program of ours, nor the pretend kubelets, has panicked in any of its starts: the operator goes on after most panics, and a program
/// that one ends is started again, so that nothing but the logs tells of them.
///
/// # Errors
/// The first line of a panic, and whose log it is in; a log that is missing.
pub fn nobody_panicked(cluster: &Cluster) -> Result<()> {
    let kubelets = cluster.testbed.process(Component::Kubelets).ok();
    let processes = cluster.operators.iter().map(|one| &*one.process).chain(&cluster.extender);
    for process in processes.chain(kubelets.as_deref()) {
        let file = process.log_path();
        no_panic(file, &std::fs::read(file).with_context(|| file.display().to_string())?)?;
    }
    let of_pods = install::log_files(&cluster.testbed);
    ensure!(!(of_pods.is_empty() && cluster.has_pods_of_chart()), "no log of the chart's pods");
    for file in of_pods {
        // A kubelet may have removed the log of a pod that is gone.
        no_panic(&file, &std::fs::read(&file).unwrap_or_default())?;
    }
    Ok(())
}

fn no_panic(file: &Path, log: &[u8]) -> Result<()> {
    let log = String::from_utf8_lossy(log);
    let panic = log.lines().find(|line| PANICS.iter().any(|words| line.contains(words)));
    ensure!(panic.is_none(), "{}: {}", file.display(), panic.unwrap_or_default());
    Ok(())
}

/// Who bound the pods of TrainingJobs, by the audit log.
#[derive(Debug, Default)]
pub struct Bindings {
    /// Pods that the extender bound, with the allocation in the Binding.
    pub by_extender: BTreeSet<String>,
    /// Pods that somebody else bound.
    pub by_others: BTreeSet<String>,
    /// Pods whose Binding does not name the allocation.
    pub without_allocation: BTreeSet<String>,
}

impl Bindings {
    /// Reads the audit log for the pods of TrainingJobs that were seen.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn read(cluster: &Cluster) -> Result<Self> {
        // Pods of adopted jobs are bound by the scheduler that their owner chose.
        Self::of(cluster, |p| {
            !p.label(names::LABEL_JOB).is_empty() && p.label(names::LABEL_ADOPTED).is_empty()
        })
    }

    /// Reads the audit log for these of the pods that were seen.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn of(cluster: &Cluster, ours: impl Fn(&PodView) -> bool) -> Result<Self> {
        let ours: BTreeSet<String> = cluster
            .observer
            .seen()
            .pods
            .values()
            .filter(|pod| ours(pod))
            .map(|p| format!("{}/{}", p.pod.namespace().unwrap_or_default(), p.pod.name_any()))
            .collect();
        let mut bindings = Self::default();
        for event in cluster.testbed.audit_log()? {
            let event = event?;
            if !event.is_binding() || !(200..300).contains(&event.code()) {
                continue;
            }
            let pod = format!("{}/{}", event.object_ref.namespace, event.object_ref.name);
            if !ours.contains(&pod) {
                continue;
            }
            let allocation = event
                .request_object
                .as_ref()
                .and_then(|o| o["metadata"]["annotations"][names::ANNOTATION_ALLOCATION].as_str())
                .unwrap_or_default();
            if allocation.parse::<i64>().is_err() {
                bindings.without_allocation.insert(pod.clone());
            }
            if event.user_agent.starts_with("andreas-extender") {
                bindings.by_extender.insert(pod);
            } else {
                bindings.by_others.insert(pod);
            }
        }
        Ok(bindings)
    }
}

impl ClusterHistory {
    /// A job as last seen.
    pub fn job(&self, key: &str) -> Option<&SlimTrainingJob> {
        self.jobs.get(key).map(|v| &v.job)
    }

    /// A job's status as last seen; the default where there is none.
    pub fn status(&self, key: &str) -> TrainingJobStatus {
        self.job(key).and_then(|j| j.status.clone()).unwrap_or_default()
    }

    /// A job's phase as last seen.
    pub fn phase(&self, key: &str) -> Phase {
        self.status(key).phase
    }

    /// The phases a job went through.
    pub fn phases(&self, key: &str) -> Vec<Phase> {
        self.jobs.get(key).map(|v| v.phases.iter().map(|(_, p)| *p).collect()).unwrap_or_default()
    }

    /// Whether a job has a condition with that reason.
    pub fn has_reason(&self, key: &str, reason: Reason) -> bool {
        self.status(key).conditions.iter().any(|c| c.reason == reason.as_str())
    }

    /// The message of the condition with that reason.
    pub fn message(&self, key: &str, reason: Reason) -> String {
        let status = self.status(key);
        status
            .conditions
            .into_iter()
            .find(|c| c.reason == reason.as_str())
            .map(|c| c.message)
            .unwrap_or_default()
    }

    /// Done, in thousandths of a percent.
    pub fn milli_percent(&self, key: &str) -> i32 {
        self.status(key).progress.map_or(0, |p| p.milli_percent)
    }
}

impl Cluster {
    /// Applies a job, and first the claim for its checkpoints.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn submit(&self, job: &Job) -> Result<()> {
        if let Some(claim) = job.claim() {
            self.apply(&claim).await?;
        }
        self.apply(&job.build()).await.with_context(|| format!("applying {}", job.key()))?;
        Ok(())
    }

    /// Makes the garbage collector know our kinds now: it looks for new ones only every 30 seconds.
    ///
    /// # Errors
    /// When the controller manager does not come back.
    pub async fn collect_garbage(&self) -> Result<()> {
        Ok(self.testbed.restart(Component::ControllerManager).await?)
    }

    /// Waits for a phase.
    ///
    /// # Errors
    /// When it is not reached in time.
    pub async fn wait_for_phase(&mut self, job: &Job, phase: Phase) -> Result<()> {
        let key = job.key();
        self.observer
            .until(&format!("{key} {}", phase.as_str()), DEFAULT_TIMEOUT, |s| s.phase(&key) == phase)
            .await
    }

    /// Waits for a condition with that reason.
    ///
    /// # Errors
    /// When it is not seen in time.
    pub async fn wait_for_reason(&mut self, job: &Job, reason: Reason) -> Result<()> {
        let key = job.key();
        self.observer
            .until(&format!("{key} {}", reason.as_str()), DEFAULT_TIMEOUT, |s| s.has_reason(&key, reason))
            .await
    }

    /// Waits until a job is at least so many percent done.
    ///
    /// # Errors
    /// When it is not so in time.
    pub async fn wait_for_percent(&mut self, job: &Job, percent: i32) -> Result<()> {
        let key = job.key();
        self.observer
            .until(&format!("{key} at {percent} %"), DEFAULT_TIMEOUT, |s| {
                s.milli_percent(&key) >= percent * 1000
            })
            .await
    }

    /// Asserts that for a while something stays true of what is seen.
    ///
    /// # Errors
    /// When it becomes false.
    pub async fn assert_holds(
        &mut self,
        what: &str,
        time: Duration,
        holds: impl Fn(&ClusterHistory) -> bool,
    ) -> Result<()> {
        let end = std::time::Instant::now() + time;
        while std::time::Instant::now() < end {
            ensure!(holds(&self.observer.seen()), "no longer {what}");
            self.observer.changed().await;
        }
        Ok(())
    }
}
