//! The TrainingProfile of a job.

use andreas_api::energy_policy::Switch;
use andreas_api::names::LABEL_PROFILE;
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::{ProfileMatching, ProfileSource, UsedProfile};
use andreas_model::ObjectKey;
use kube::ResourceExt;

use super::ClusterIndex;
use super::program::program;

impl ClusterIndex {
    /// The profile that a job is planned with. The first written status fixes it, so that later releases and
    /// profiles of other names do not change it.
    pub fn used_profile(&self, job: &SlimTrainingJob) -> UsedProfile {
        if let Some(name) = job.spec.profile() {
            return UsedProfile { name: name.to_owned(), source: ProfileSource::Spec };
        }
        if let Some(used) = job.status.as_ref().and_then(|status| status.profile.as_ref()) {
            return used.clone();
        }
        if let Some(name) = job.labels().get(LABEL_PROFILE).and_then(|label| object_name(label)) {
            return UsedProfile { name, source: ProfileSource::Label };
        }
        let own = ObjectKey { namespace: job.namespace().unwrap_or_default(), name: job.name_any() };
        let policy = self.policy().map(|policy| policy.spec.unknown_jobs.match_profiles).unwrap_or_default();
        // Jobs of an earlier release keep the profile that they began with.
        let began = job.status.as_ref().is_some_and(|status| status.attempts > 0);
        let matches = policy == Switch::On && job.spec.profile_matching == ProfileMatching::Auto && !began;
        let found = if matches && self.profiles.get(&own).is_none() { program(job) } else { None };
        match found {
            Some(program) => UsedProfile { name: program.profile, source: ProfileSource::Program },
            None => UsedProfile { name: own.name, source: ProfileSource::Name },
        }
    }

    /// The key of that profile.
    pub fn profile_key(&self, job: &SlimTrainingJob) -> ObjectKey {
        ObjectKey { namespace: job.namespace().unwrap_or_default(), name: self.used_profile(job).name }
    }

    /// The program whose runs share this profile, if it was found by a program.
    pub fn program_of_profile(&self, profile: &ObjectKey) -> Option<String> {
        let found_by_program = |job: &SlimTrainingJob| {
            let used = job.status.as_ref().and_then(|status| status.profile.as_ref());
            used.is_some_and(|used| used.source == ProfileSource::Program && used.name == profile.name)
        };
        let jobs = self.jobs.iter().filter(|(key, _)| key.namespace == profile.namespace);
        let (_, job) = jobs.into_iter().find(|(_, job)| found_by_program(job))?;
        program(job).map(|program| program.description)
    }
}

/// A label's value as the name of an object; `None` if nothing of it can be one.
fn object_name(label: &str) -> Option<String> {
    let name = label.to_ascii_lowercase().replace('_', "-");
    let name = name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    (!name.is_empty() && !name.contains("..")).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use andreas_api::slim::{SlimEnergyPolicy, SlimTrainingProfile};
    use andreas_model::Index;
    use serde_json::{Value, json};

    use super::*;

    fn job(change: Value) -> SlimTrainingJob {
        let mut job = json!({
            "metadata": {"name": "run-17", "namespace": "team", "labels": {}},
            "spec": {"template": {"spec": {"containers": [{"name": "t", "image": "lab/bert:1", "args": ["train.py"]}]}}},
        });
        for (field, value) in change.as_object().expect("fields") {
            for (name, value) in value.as_object().expect("an object") {
                job[field][name] = value.clone();
            }
        }
        serde_json::from_value(job).expect("a job")
    }

    fn found(index: &ClusterIndex, change: Value) -> (ProfileSource, String) {
        let used = index.used_profile(&job(change));
        (used.source, used.name)
    }

    #[test]
    fn the_profile_is_the_one_named_then_that_of_the_program_then_that_of_the_job() {
        let mut index = ClusterIndex::new();
        let (source, program) = found(&index, json!({}));
        assert_eq!(source, ProfileSource::Program);
        assert!(program.starts_with("train-"), "{program}");
        assert_eq!(
            found(&index, json!({"spec": {"profileRef": {"name": "bert"}}})),
            (ProfileSource::Spec, "bert".into())
        );
        let labelled = json!({"metadata": {"labels": {"andreas.dev/profile": "Bert_Large"}}});
        assert_eq!(found(&index, labelled), (ProfileSource::Label, "bert-large".into()));
        let own = (ProfileSource::Name, "run-17".to_owned());
        assert_eq!(found(&index, json!({"spec": {"profileMatching": "Off"}})), own);
        assert_eq!(
            found(&index, json!({"status": {"phase": "Running", "attempts": 1}})),
            own,
            "of an earlier release"
        );
        let fixed = json!({"status": {"attempts": 1, "profile": {"name": "train-0", "source": "Program"}}});
        assert_eq!(found(&index, fixed), (ProfileSource::Program, "train-0".into()));

        // The user made one for the job.
        let profile = json!({"metadata": {"name": "run-17", "namespace": "team", "uid": "u", "resourceVersion": "1"}, "spec": {}});
        let profile: SlimTrainingProfile = serde_json::from_value(profile).expect("a profile");
        index.apply(profile);
        assert_eq!(found(&index, json!({})), own);
    }

    #[test]
    fn an_administrator_can_switch_matching_off() {
        let mut index = ClusterIndex::new();
        let policy = json!({"metadata": {"name": "default", "uid": "u", "resourceVersion": "1"},
            "spec": {"unknownJobs": {"matchProfiles": "Off"}}});
        index.apply(serde_json::from_value::<SlimEnergyPolicy>(policy).expect("a policy"));
        assert_eq!(found(&index, json!({})), (ProfileSource::Name, "run-17".into()));
    }
}
