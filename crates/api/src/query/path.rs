//! Paths of the query API.

use super::{GROUP, VERSION};

/// `GET`: the jobs of a namespace that have not ended, in the order of their expected starts.
#[must_use]
pub fn queue(namespace: &str) -> String {
    format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/queue")
}

/// [`queue`], its first `limit` jobs.
#[must_use]
pub fn queue_of(namespace: &str, limit: usize) -> String {
    format!("{}?limit={limit}", queue(namespace))
}

/// `GET`: one job, what decided about it, and what would help it.
#[must_use]
pub fn explain(namespace: &str, job: &str) -> String {
    format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/jobs/{job}/explain")
}

/// [`explain`], trying changes however many jobs there are.
#[must_use]
pub fn explain_with_changes(namespace: &str, job: &str) -> String {
    format!("{}?changes=Always", explain(namespace, job))
}

/// `POST`: the effect of a change that is not made.
#[must_use]
pub fn what_if(namespace: &str) -> String {
    format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/whatif")
}

/// `POST`: the probability that a job submitted now would be on time.
#[must_use]
pub fn can(namespace: &str) -> String {
    format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/can")
}
