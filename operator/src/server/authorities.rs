//! Authorities that members of jobs were given when their pods were made, and keep for life.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::names;
use andreas_cluster::index::{ClusterIndex, owner};
use andreas_runtime::certificates::verifies;
use jiff::Timestamp;

/// Maximum CA bundles of running pods that are read. A handful exists: one per authority.
const MAX_BUNDLES: usize = 64;

/// CA bundles of the members that have not ended, with the UIDs of their jobs.
pub type Bundles = BTreeMap<String, BTreeSet<String>>;

/// The bundles given to members.
pub fn bundles(index: &ClusterIndex) -> Bundles {
    let mut given: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, pod) in index.pods().iter() {
        let Some((_, job)) = owner(&pod.metadata).filter(|_| !pod.has_ended()) else { continue };
        let annotations = pod.metadata.annotations.as_ref();
        if let Some(bundle) = annotations.and_then(|all| all.get(names::ANNOTATION_PROGRESS_CA)) {
            given.entry(bundle).or_default().insert(job);
        }
    }
    let owned = |jobs: BTreeSet<&str>| jobs.into_iter().map(str::to_owned).collect();
    given.into_iter().take(MAX_BUNDLES).map(|(bundle, jobs)| (bundle.to_owned(), owned(jobs))).collect()
}

/// UIDs of the jobs with members that do not accept `chain` from a server of this name.
pub fn untrusting_jobs(bundles: Bundles, chain: &str, name: &str, now: Timestamp) -> BTreeSet<String> {
    bundles
        .into_iter()
        .filter(|(bundle, _)| !verifies(chain, bundle, name, now))
        .flat_map(|(_, jobs)| jobs)
        .collect()
}

#[cfg(test)]
mod tests {
    use andreas_api::slim::SlimPod;
    use andreas_runtime::certificates::{
        CertificateLifetime, RenewalInput, ServingCertificate, Subject, renew,
    };
    use andreas_runtime::watch::Index as _;
    use serde_json::json;

    use super::*;

    /// A pod of the job with this UID, if any.
    fn pod(name: &str, phase: &str, bundle: &str, uid: Option<&str>) -> SlimPod {
        let owners: Vec<_> = uid.into_iter().map(|uid| crate::testing::owner("run", uid)).collect();
        let object = json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1",
                "labels": {"andreas.dev/job": "run", "andreas.dev/job-uid": uid.unwrap_or("u")},
                "annotations": {"andreas.dev/progress-ca": bundle}, "ownerReferences": owners},
            "spec": {}, "status": {"phase": phase},
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_program_that_does_not_know_the_served_authority_is_not_blamed_for_its_silence() {
        let made = || {
            let subject = Subject { names: vec!["operator.system.svc".into()] };
            let (lifetime, now) = (CertificateLifetime::default(), Timestamp::now());
            let input = RenewalInput { subject: &subject, lifetime, now, given: None };
            renew(&ServingCertificate::default(), &input).unwrap()
        };
        let (former, latter) = (made(), made());
        let mut index = ClusterIndex::new();
        for member in [
            pod("a", "Running", &former.bundle, Some("knows")),
            pod("b", "Running", &latter.bundle, Some("stranger")),
            pod("c", "Failed", &latter.bundle, Some("ended")),
            pod("d", "Running", "no certificate", Some("odd")),
            pod("e", "Running", &latter.bundle, None),
        ] {
            index.apply(member);
        }
        let found = untrusting_jobs(bundles(&index), &former.chain, "operator.system.svc", Timestamp::now());
        assert_eq!(found, BTreeSet::from(["odd".to_owned(), "stranger".to_owned()]));
    }

    #[test]
    fn the_bundles_are_those_of_members_that_have_not_ended() {
        let mut index = ClusterIndex::new();
        for member in [
            pod("a", "Running", "former", Some("u")),
            pod("b", "Pending", "former", Some("u")),
            pod("c", "Running", "both", Some("u")),
            pod("d", "Succeeded", "older", Some("u")),
            pod("e", "Running", "forged", None),
        ] {
            index.apply(member);
        }
        assert!(bundles(&index).keys().eq(["both", "former"]));
    }
}
