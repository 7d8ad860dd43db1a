//! Removes unused profiles that the operator created. Users' own are never touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use andreas_api::names::{FIELD_MANAGER, LABEL_MADE_BY};
use andreas_api::slim::SlimTrainingProfile;
use andreas_api::{TrainingProfile, TrainingProfileSpec, key_of};
use andreas_runtime::clock;
use andreas_runtime::watch::ObjectKey;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::shared::Shared;

/// How long an unused profile is kept.
const KEPT_FOR: SignedDuration = SignedDuration::from_hours(90 * 24);
/// Maximum operator-created profiles per namespace; beyond that the least recently used one is removed.
const MAX_CREATED_PROFILES: usize = 500;
/// Maximum removed in one pass.
const AT_ONCE: usize = 50;

/// Created by the operator and not written by others since.
fn is_ours(profile: &SlimTrainingProfile) -> bool {
    let made_by = profile.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL_MADE_BY));
    made_by.is_some_and(|by| by == FIELD_MANAGER)
        && profile.spec == TrainingProfileSpec::default()
        && profile.metadata.deletion_timestamp.is_none()
}

fn last_used(profile: &SlimTrainingProfile) -> Timestamp {
    let status = profile.status.as_ref();
    let seen = status.into_iter().flat_map(|status| status.observations.iter().map(|seen| seen.at.0));
    let finished = status.into_iter().flat_map(|status| status.finished_runs.iter().map(|run| run.at.0));
    let restarts = status.into_iter().flat_map(|status| status.restarts.iter().map(|restart| restart.at.0));
    let made = profile.metadata.creation_timestamp.iter().map(|made| made.0);
    seen.chain(finished).chain(restarts).chain(made).max().unwrap_or(Timestamp::MAX)
}

/// A profile and its last use.
type Dated<'a> = (Timestamp, &'a ObjectKey, &'a Arc<SlimTrainingProfile>);

/// Removable profiles: unused for `kept_for`, or above `most` per namespace, least recently used first.
/// `used` are those of jobs that have not ended.
fn unused<'a>(
    profiles: impl Iterator<Item = (&'a ObjectKey, &'a Arc<SlimTrainingProfile>)>,
    used: &BTreeSet<ObjectKey>,
    now: Timestamp,
    (kept_for, most): (SignedDuration, usize),
) -> Vec<Arc<SlimTrainingProfile>> {
    let mut ours: BTreeMap<&str, Vec<Dated<'_>>> = BTreeMap::new();
    for (key, profile) in profiles.filter(|(_, profile)| is_ours(profile)) {
        ours.entry(&key.namespace).or_default().push((last_used(profile), key, profile));
    }
    let mut gone = Vec::new();
    for mut of_namespace in ours.into_values() {
        of_namespace.sort_unstable_by_key(|(at, key, _)| (*at, *key));
        let mut left = of_namespace.len();
        for (at, key, profile) in of_namespace {
            let old = now.duration_since(at) >= kept_for;
            if (old || left > most) && !used.contains(key) {
                gone.push(Arc::clone(profile));
                left -= 1;
            }
        }
    }
    gone
}

/// Deletes unused profiles with the version seen: one that was written meanwhile stays.
pub(crate) async fn remove(shared: &Shared) {
    let gone = {
        let index = shared.index.lock();
        let open = index
            .jobs()
            .iter()
            .filter(|(_, job)| !job.status.as_ref().is_some_and(|s| s.phase.is_terminal()));
        let used = open.map(|(_, job)| index.profile_key(job)).collect();
        unused(index.profiles().iter(), &used, clock::now(), (KEPT_FOR, MAX_CREATED_PROFILES))
    };
    for profile in gone.into_iter().take(AT_ONCE) {
        let key = key_of(&*profile);
        let uid = profile.uid().unwrap_or_default();
        match shared.writer.delete::<TrainingProfile>(&key, &uid, profile.resource_version(), None).await {
            Ok(_) => tracing::info!(profile = %key, "removed: no job has used it for long"),
            Err(error) => tracing::debug!(profile = %key, %error, "not removed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const DAY: i64 = 86_400;

    fn profile(
        namespace: &str,
        name: &str,
        day: i64,
        made_by: Option<&str>,
        spec: Value,
    ) -> SlimTrainingProfile {
        let at = Timestamp::from_second(day * DAY).expect("a time");
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": Timestamp::UNIX_EPOCH,
                         "labels": made_by.map(|by| json!({LABEL_MADE_BY: by}))},
            "spec": spec, "status": {"finishedRuns": [{"run": "r-1", "seconds": 1, "at": at}]},
        }))
        .expect("a profile")
    }

    fn unneeded(profiles: Vec<SlimTrainingProfile>, used: &[&str], most: usize) -> Vec<String> {
        let held: BTreeMap<_, _> = profiles.into_iter().map(|p| (key_of(&p), Arc::new(p))).collect();
        let used =
            used.iter().map(|name| ObjectKey { namespace: "a".into(), name: (*name).to_owned() }).collect();
        let now = Timestamp::from_second(100 * DAY).expect("a time");
        let gone = unused(held.iter(), &used, now, (SignedDuration::from_hours(24 * 30), most));
        gone.iter().map(|profile| profile.name_any()).collect()
    }

    #[test]
    fn profiles_that_the_operator_made_go_when_no_job_has_used_them_for_long() {
        let ours = Some(FIELD_MANAGER);
        let profiles = vec![
            profile("a", "old", 69, ours, json!({})),
            profile("a", "recent", 71, ours, json!({})),
            profile("a", "waited-for", 1, ours, json!({})),
            profile("a", "users-own", 1, None, json!({})),
            profile("a", "edited-since", 1, ours, json!({"features": {"batchSize": 8}})),
        ];
        assert_eq!(unneeded(profiles, &["waited-for"], 100), ["old"]);
    }

    #[test]
    fn a_namespace_keeps_a_bounded_number_of_them_the_latest_used() {
        let ours = Some(FIELD_MANAGER);
        let many = |namespace: &str, count: i64| {
            (0..count)
                .map(|n| profile(namespace, &format!("{namespace}{n}"), 90 + n, ours, json!({})))
                .collect::<Vec<_>>()
        };
        let profiles = [many("a", 6), many("b", 3)].concat();
        assert_eq!(unneeded(profiles, &["a1"], 3), ["a0", "a2", "a3"], "one that is in use stays");
    }
}
