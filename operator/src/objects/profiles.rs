//! TrainingProfiles maintained by the operator: observations are merged without losing others' writes.
//!
//! A job without `spec.profileRef` shares one with runs of the same program
//! ([`ClusterIndex::used_profile`](andreas_cluster::index::ClusterIndex::used_profile)). That profile is *virtual* until its first
//! observation creates it, so a thousand waiting jobs cost no object.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::names::{ANNOTATION_PROGRAM, FIELD_MANAGER, LABEL_MADE_BY};
use andreas_api::slim::SlimTrainingProfile;
use andreas_api::{TrainingProfile, TrainingProfileSpec, TrainingProfileStatus};
use andreas_lifecycle::ProfileUpdate;
use andreas_runtime::watch::ObjectKey;
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;
use crate::writes::{Refusal, WriteError, patch};

mod unused;
pub(crate) use unused::remove as remove_unused;

/// Maximum run times kept, newest last.
const MAX_FINISHED: usize = 16;
/// Maximum restarts kept, newest last.
const MAX_RESTARTS: usize = 16;
/// Maximum pending updates of one profile; more would not be kept.
const MAX_WAITING: usize = 256;
/// Interval of writing updates.
const EVERY: Duration = Duration::from_secs(1);
/// Interval of removing unused profiles.
const REMOVE_EVERY: Duration = Duration::from_secs(300);

/// Merges updates. Each attempt has one observation and one end, so the merge is idempotent: a write with a
/// lost response is repeated.
pub fn merge(status: &mut TrainingProfileStatus, learned: &[ProfileUpdate]) {
    for update in learned {
        match update {
            ProfileUpdate::Observation(new) => {
                status.observations.retain(|old| !andreas_cluster::profiles::same_run(old, new));
                status.observations.push(new.clone());
                andreas_cluster::profiles::trim_observations(&mut status.observations);
            }
            ProfileUpdate::Barred(new) => andreas_cluster::profiles::bar(&mut status.barred, new.clone()),
            ProfileUpdate::Finished(new) => {
                if !status.finished_runs.iter().any(|old| old.run == new.run && old.at == new.at) {
                    status.finished_runs.push(new.clone());
                    trim(&mut status.finished_runs, MAX_FINISHED);
                }
            }
            ProfileUpdate::Restart(new) => {
                if !status.restarts.iter().any(|old| old.run == new.run && old.at == new.at) {
                    status.restarts.push(new.clone());
                    trim(&mut status.restarts, MAX_RESTARTS);
                }
            }
        }
    }
}

fn trim<T>(list: &mut Vec<T>, most: usize) {
    let over = list.len().saturating_sub(most);
    list.drain(..over);
}

/// Updates that are not written yet, by profile.
#[derive(Default)]
pub struct ProfileUpdates {
    waiting: Mutex<BTreeMap<ObjectKey, Vec<ProfileUpdate>>>,
}

impl ProfileUpdates {
    /// Adds updates for this profile.
    pub fn add(&self, profile: ObjectKey, learned: Vec<ProfileUpdate>) {
        let mut waiting = self.waiting.lock();
        let known = waiting.entry(profile).or_default();
        known.extend(learned);
        trim(known, MAX_WAITING);
    }

    /// Puts back updates of a failed write, before newer ones.
    fn push_back(&self, key: ObjectKey, mut learned: Vec<ProfileUpdate>) {
        let mut waiting = self.waiting.lock();
        let known = waiting.entry(key).or_default();
        learned.append(known);
        trim(&mut learned, MAX_WAITING);
        *known = learned;
    }

    fn take(&self) -> BTreeMap<ObjectKey, Vec<ProfileUpdate>> {
        std::mem::take(&mut self.waiting.lock())
    }
}

/// Writes updates, one write per profile and second. A profile with a thousand runs is one object, and a
/// thousand concurrent writers would mostly conflict. A crash loses only advice, not state.
pub async fn run(shared: Arc<Shared>, updates: Arc<ProfileUpdates>, shutdown: CancellationToken) {
    let mut removal = tokio::time::Instant::now() + REMOVE_EVERY;
    loop {
        let ending = tokio::select! {
            () = tokio::time::sleep(EVERY) => false,
            () = shutdown.cancelled() => true,
        };
        write(&shared, &updates).await;
        if ending {
            return;
        }
        if tokio::time::Instant::now() >= removal {
            remove_unused(&shared).await;
            removal = tokio::time::Instant::now() + REMOVE_EVERY;
        }
    }
}

/// Writes the pending updates; those that failed stay pending.
pub(crate) async fn write(shared: &Shared, updates: &ProfileUpdates) {
    let writes = updates.take().into_iter().map(|(key, learned)| learn(shared, updates, key, learned));
    futures::future::join_all(writes).await;
}

async fn learn(shared: &Shared, updates: &ProfileUpdates, key: ObjectKey, learned: Vec<ProfileUpdate>) {
    match try_learn(shared, &key, &learned).await {
        Ok(()) => {}
        Err(error) if matches!(error.refusal(), Refusal::Exists | Refusal::Conflict | Refusal::Busy(_)) => {
            updates.push_back(key, learned);
        }
        Err(error) => {
            tracing::warn!(profile = %key, error = &error as &dyn std::error::Error, "observations are lost");
        }
    }
}

async fn try_learn(shared: &Shared, key: &ObjectKey, learned: &[ProfileUpdate]) -> Result<(), WriteError> {
    let found: Option<SlimTrainingProfile> = shared.writer.get(key).await?;
    let profile = match found {
        Some(profile) => profile,
        None => {
            let mut new = TrainingProfile::new(&key.name, TrainingProfileSpec::default());
            new.metadata.namespace = Some(key.namespace.clone());
            let program = shared.index.lock().program_of_profile(key);
            new.metadata.annotations =
                program.map(|program| BTreeMap::from([(ANNOTATION_PROGRAM.to_owned(), program)]));
            new.metadata.labels =
                Some(BTreeMap::from([(LABEL_MADE_BY.to_owned(), FIELD_MANAGER.to_owned())]));
            shared.writer.create("profile", Some(&key.namespace), &new, false).await?
        }
    };
    let old = profile.status.clone().unwrap_or_default();
    let mut new = old.clone();
    merge(&mut new, learned);
    let value = |status: &TrainingProfileStatus| serde_json::to_value(status).unwrap_or_else(|_| json!({}));
    let Some(changes) = patch::diff(&value(&old), &value(&new)) else { return Ok(()) };
    let body = patch::status_body(
        &profile.uid().unwrap_or_default(),
        profile.resource_version().as_deref(),
        changes,
    );
    let answer = shared.writer.patch_status("profile", key, &body).await?;
    shared.index.lock().wrote_profile(answer);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::training_profile::{Barred, FinishedRun, Observation, ObservedRestart};
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn observation(run: &str, millis: i64) -> ProfileUpdate {
        ProfileUpdate::Observation(Observation {
            run: run.into(),
            gpu_type: "A".into(),
            gpus: 1,
            nodes: 1,
            power_limit_watts: None,
            millis_per_epoch: millis,
            milli_epochs: 1_000,
            watts: None,
            claimed: false,
            at: Time(Timestamp::UNIX_EPOCH),
        })
    }

    fn finished(run: &str, seconds: i64, at: i64) -> ProfileUpdate {
        let at = Time(Timestamp::from_second(at).expect("a time"));
        ProfileUpdate::Finished(FinishedRun { run: run.into(), seconds, at })
    }

    #[test]
    fn a_write_whose_answer_was_lost_is_made_again_without_harm() {
        // Given updates of two runs that were written with a lost response.
        let mut status = TrainingProfileStatus::default();
        let observations = [observation("a-1", 5), finished("a-1", 100, 1_000), finished("b-2", 100, 1_000)];
        merge(&mut status, &observations);
        let once = status.clone();
        // When they are written again, also after others wrote.
        merge(&mut status, &observations);
        assert_eq!(status, once);
        merge(&mut status, &[finished("c-1", 70, 1_500)]);
        merge(&mut status, &observations);
        let kept = |status: &TrainingProfileStatus| {
            status.finished_runs.iter().map(|run| run.run.clone()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&status), ["a-1", "b-2", "c-1"]);
        // A job created again under its name is another run.
        merge(&mut status, &[finished("a-1", 90, 2_000)]);
        assert_eq!(kept(&status), ["a-1", "b-2", "c-1", "a-1"]);
        for n in 0..40 {
            merge(&mut status, &[finished("d-1", 90, 3_000 + n)]);
        }
        assert_eq!(status.finished_runs.len(), 16);
    }

    #[test]
    fn restarts_are_kept_once_each_and_the_last_sixteen_of_them() {
        let restart = |n: i64| {
            let at = Time(Timestamp::from_second(n).expect("a time"));
            ProfileUpdate::Restart(ObservedRestart { run: format!("a-{n}"), seconds: n + 1, at })
        };
        let mut status = TrainingProfileStatus::default();
        for n in 0..20 {
            merge(&mut status, &[restart(n), restart(n)]);
        }
        let kept: Vec<i64> = status.restarts.iter().map(|restart| restart.seconds).collect();
        assert_eq!(kept, (5..=20).collect::<Vec<_>>());
    }

    #[test]
    fn a_run_is_kept_once_and_the_list_stays_bounded() {
        let mut status = TrainingProfileStatus::default();
        for n in 0..100 {
            merge(&mut status, &[observation(&format!("a-{n}"), n)]);
        }
        let exhausted = |most_gpus| {
            let at = Time(Timestamp::UNIX_EPOCH);
            let of_type = Some("T4".to_owned());
            ProfileUpdate::Barred(Barred {
                gpu_type: of_type,
                most_gpus,
                gpus_per_worker: None,
                architecture: None,
                at,
            })
        };
        merge(&mut status, &[observation("a-99", 7), exhausted(Some(2)), exhausted(None)]);
        merge(&mut status, &[exhausted(Some(4)), exhausted(Some(1))]);
        assert_eq!(status.observations.len(), 64);
        assert_eq!(status.observations.last().map(|o| o.millis_per_epoch), Some(7));
        assert_eq!(status.observations[0].run, "a-36");
        let barred: Vec<String> = status.barred.iter().map(ToString::to_string).collect();
        assert_eq!(barred, ["GPUs of T4", "4 and fewer GPUs of T4"]);
    }

    #[test]
    fn a_job_made_again_under_its_name_keeps_the_observations_of_the_one_before() {
        let on = |gpu_type: &str, second: i64, watts: Option<i32>| {
            let ProfileUpdate::Observation(seen) = observation("bert-1", 1_000) else {
                panic!("an observation")
            };
            let at = Time(Timestamp::from_second(second).expect("a time"));
            ProfileUpdate::Observation(Observation { gpu_type: gpu_type.into(), at, watts, ..seen })
        };
        let mut status = TrainingProfileStatus::default();
        merge(&mut status, &[on("A100", 1_000, None), on("T4", 2_000, None)]);
        // Late measurements of the agents are added to their run.
        merge(&mut status, &[on("A100", 1_000, Some(300))]);
        let kept: Vec<_> = status.observations.iter().map(|o| (o.gpu_type.as_str(), o.watts)).collect();
        assert_eq!(kept, [("T4", None), ("A100", Some(300))]);
    }
}
