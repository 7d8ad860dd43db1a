//! TrainingProfiles that the operator keeps: what was observed, merged in without losing what others wrote.
//!
//! A job without `spec.profile` belongs to a profile of its own name. That profile is *virtual* until something was
//! observed: it is made with the first observation, so that a thousand waiting jobs cost no object.

use std::sync::Arc;

use andreas_api::slim::{SlimTrainingJob, SlimTrainingProfile};
use andreas_api::{TrainingProfile, TrainingProfileSpec, TrainingProfileStatus};
use andreas_runtime::watch::ObjectKey;
use kube::ResourceExt;
use serde_json::json;

use crate::executor::Shared;
use crate::executor::patch;
use crate::executor::refusal::Refusal;
use crate::executor::writer::WriteError;
use crate::lifecycle::Learned;
use crate::snapshot::tables::profile_key;

/// Observations that are kept, newest last.
const MAX_OBSERVATIONS: usize = 64;
/// Run times that are kept, newest last.
const MAX_FINISHED: usize = 16;
/// GPU types that are kept as too small.
const MAX_TYPES: usize = 32;
/// How often a conflict is tried again.
const TRIES: usize = 5;

/// Adds what was learned; the same run's observation replaces its earlier one, so doing it twice does no harm.
pub fn merge(status: &mut TrainingProfileStatus, learned: &[Learned]) {
    for lesson in learned {
        match lesson {
            Learned::Observation(new) => {
                status.observations.retain(|old| old.run != new.run);
                status.observations.push(new.clone());
                trim(&mut status.observations, MAX_OBSERVATIONS);
            }
            Learned::OutOfMemory { gpu_type } => {
                if !status.out_of_memory_types.contains(gpu_type) {
                    status.out_of_memory_types.push(gpu_type.clone());
                    trim(&mut status.out_of_memory_types, MAX_TYPES);
                }
            }
            Learned::FinishedRun { seconds } => {
                status.finished_run_seconds.push((*seconds).max(1));
                trim(&mut status.finished_run_seconds, MAX_FINISHED);
            }
        }
    }
}

fn trim<T>(list: &mut Vec<T>, most: usize) {
    let over = list.len().saturating_sub(most);
    list.drain(..over);
}

/// Writes what was learned into the job's profile. What cannot be written is lost: it is advice, not state.
pub async fn learn(shared: &Arc<Shared>, job: &SlimTrainingJob, learned: &[Learned]) {
    let key = profile_key(job);
    for _ in 0..TRIES {
        match try_learn(shared, &key, job, learned).await {
            Ok(()) => return,
            Err(error) if error.refusal() == Refusal::Conflict => {}
            Err(error) => {
                tracing::warn!(profile = %key, error = &error as &dyn std::error::Error, "an observation is lost");
                return;
            }
        }
    }
    tracing::warn!(profile = %key, "an observation is lost: the profile kept changing");
}

async fn try_learn(
    shared: &Arc<Shared>,
    key: &ObjectKey,
    job: &SlimTrainingJob,
    learned: &[Learned],
) -> Result<(), WriteError> {
    let found: Option<SlimTrainingProfile> = shared.writer.get(key).await?;
    let profile = match found {
        Some(profile) => profile,
        // One that the user names is the user's to make; ours is made here.
        None => {
            let mut new = TrainingProfile::new(&key.name, TrainingProfileSpec::default());
            new.metadata.namespace = Some(key.namespace.clone());
            if job.spec.profile.is_none() {
                new.metadata.annotations =
                    Some([("andreas.dev/made-for".to_owned(), job.name_any())].into_iter().collect());
            }
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
    let answer = shared.writer.patch_profile_status(key, &body).await?;
    shared.index.lock().wrote_profile(answer);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::training_profile::Observation;
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn observation(run: &str, millis: i64) -> Learned {
        Learned::Observation(Observation {
            run: run.into(),
            gpu_type: "A".into(),
            gpus: 1,
            nodes: 1,
            power_limit_watts: None,
            millis_per_epoch: millis,
            milli_epochs: 1_000,
            watts: None,
            at: Time(Timestamp::UNIX_EPOCH),
        })
    }

    #[test]
    fn a_run_is_kept_once_and_the_list_stays_bounded() {
        let mut status = TrainingProfileStatus::default();
        for n in 0..100 {
            merge(&mut status, &[observation(&format!("a-{n}"), n)]);
        }
        merge(&mut status, &[observation("a-99", 7), Learned::OutOfMemory { gpu_type: "T4".into() }]);
        merge(&mut status, &[Learned::OutOfMemory { gpu_type: "T4".into() }]);
        assert_eq!(status.observations.len(), 64);
        assert_eq!(status.observations.last().map(|o| o.millis_per_epoch), Some(7));
        assert_eq!(status.observations[0].run, "a-36");
        assert_eq!(status.out_of_memory_types, ["T4"]);
    }
}
