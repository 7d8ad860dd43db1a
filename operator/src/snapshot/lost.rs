//! Work lost by stopping a job with a checkpoint: everything since it last saved.
//!
//! Programs do not report saves. A loss shows when the next attempt continues below the last one's reported
//! progress. Jobs of the same profile save alike, so one job's loss is used for the others. Without an
//! observation no loss is assumed: the program has its grace period to save.

use std::collections::BTreeMap;

use andreas_api::TrainingJobStatus;
use andreas_cluster::index::ClusterIndex;
use andreas_runtime::watch::ObjectKey;

/// Observed epochs lost by stops, per job.
#[derive(Debug, Default)]
pub(super) struct LostWork {
    profiles: BTreeMap<ObjectKey, (f64, u32)>,
}

impl LostWork {
    /// Losses of all jobs of the cluster, ended ones included.
    pub fn from_index(index: &ClusterIndex) -> Self {
        let mut profiles: BTreeMap<ObjectKey, (f64, u32)> = BTreeMap::new();
        for (_, job) in index.jobs().iter() {
            let lost = job.status.as_ref().and_then(|status| lost_epochs(status, job.spec.epochs));
            if let Some(epochs) = lost.filter(|_| job.spec.checkpoint.is_some()) {
                let (sum, count) = profiles.entry(index.profile_key(job)).or_default();
                *sum += epochs;
                *count += 1;
            }
        }
        Self { profiles }
    }

    /// Epochs lost by a stop of a job with `epochs` epochs: its own last loss, else its profile's mean, else
    /// 0.
    pub fn epochs(&self, status: Option<&TrainingJobStatus>, epochs: i32, profile: &ObjectKey) -> f64 {
        let mean = || self.profiles.get(profile).map(|(sum, count)| sum / f64::from((*count).max(1)));
        status.and_then(|status| lost_epochs(status, epochs)).or_else(mean).unwrap_or(0.0)
    }
}

/// How many epochs the newest reporting attempt began below the end of the one before it; at least 0. The
/// first report comes some seconds after the start, so the result is rather too low.
fn lost_epochs(status: &TrainingJobStatus, epochs: i32) -> Option<f64> {
    let progress = status.progress.as_ref()?;
    let before = status.history.iter().rev().find(|r| r.attempt < progress.attempt && r.started.is_some())?;
    let lost = before.milli_percent.checked_sub(progress.attempt_start)?.max(0);
    Some(f64::from(lost) / 100_000.0 * f64::from(epochs.max(1)))
}

#[cfg(test)]
mod tests {
    use andreas_api::slim::SlimTrainingJob;
    use andreas_runtime::watch::Index;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    /// A job of 100 epochs. Its first attempt had reported `ended` percent when it was stopped; the second
    /// continues from `from`.
    fn stopped(name: &str, profile: &str, checkpoint: Value, ended: i32, from: i32) -> SlimTrainingJob {
        let at = "2026-01-01T00:00:00Z";
        let mut job = testing::job(
            10,
            &json!({"phase": "Running",
            "history": [{"attempt": 1, "outcome": "Stopped", "reason": "Preempted", "gpuType": "A", "gpus": 1, "placement": "n1",
                "message": "", "started": at, "ended": at, "milliPercent": ended * 1_000, "joules": 0}],
            "progress": {"milliPercent": 90_000, "attempt": 2, "attemptStart": from * 1_000, "at": at}}),
        );
        job["metadata"]["name"] = name.into();
        job["spec"]["epochs"] = 100.into();
        job["spec"]["profileRef"] = json!({ "name": profile });
        job["spec"]["checkpoint"] = checkpoint;
        serde_json::from_value(job).expect("a job")
    }

    #[test]
    fn work_lost_by_a_stop_is_learnt_from_where_the_next_attempt_went_on() {
        let saves = || json!({"claimName": "ckpt"});
        let mut index = ClusterIndex::new();
        let own = stopped("a", "bert", saves(), 50, 40);
        index.apply(own.clone());
        index.apply(stopped("b", "bert", saves(), 30, 30));
        // A job without any save shows nothing about checkpoints; nor does another profile.
        index.apply(stopped("c", "bert", Value::Null, 80, 0));
        index.apply(stopped("d", "gpt", saves(), 70, 10));
        let lost = LostWork::from_index(&index);
        let profile = index.profile_key(&own);
        let close = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-9, "{found} {wanted}");
        close(lost.epochs(own.status.as_ref(), 100, &profile), 10.0);
        close(lost.epochs(None, 100, &profile), 5.0);
        let unknown = ObjectKey { namespace: "team".into(), name: "new".into() };
        close(lost.epochs(None, 100, &unknown), 0.0);
    }
}
