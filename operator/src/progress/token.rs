//! Authenticates a report's sender: TokenReview with the job's own audience, cached for a minute by digest.

use std::net::IpAddr;
use std::time::Duration;

use andreas_runtime::access::{Digest, digest};
use andreas_runtime::buckets::Reviews;
use andreas_runtime::remembered::Remembered;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// How long an answer is cached.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Maximum cached answers.
const MAX_KEPT: usize = 20_000;
/// Maximum concurrent reviews.
const REVIEWS: usize = 8;

/// The pod that a token was issued to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Namespace of the pod and its service account.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
}

/// Why a token could not be reviewed. The sender retries.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The sender's address or namespace exceeds its rate limit.
    #[error("too many unknown tokens from one address, or too many unknown pods of one namespace")]
    TooMany,
    /// The API server refused or failed.
    #[error("the API server did not review a token: {0}")]
    Api(#[from] kube::Error),
}

/// Reviews tokens and caches the answers by digest.
pub struct Tokens {
    client: Client,
    reviews: Semaphore,
    by_address: Reviews,
    kept: Remembered<Digest, Option<PodIdentity>>,
}

impl Tokens {
    /// Empty cache.
    pub fn new(client: Client) -> Self {
        let (reviews, kept) = (Semaphore::new(REVIEWS), Remembered::new(MAX_KEPT, REMEMBERED));
        Self { client, reviews, by_address: Reviews::by_address(), kept }
    }

    /// The pod that `token`, sent from `peer`, was issued to for `audience`; `None`: invalid.
    ///
    /// # Errors
    /// If `peer` exceeds its rate limit, or the API server is unavailable.
    pub async fn review(
        &self,
        token: &str,
        audience: &str,
        peer: IpAddr,
    ) -> Result<Option<PodIdentity>, ReviewError> {
        let digest = digest(token, audience);
        if let Some(pod) = self.kept.get(&digest) {
            return Ok(pod);
        }
        self.admit(peer)?;
        let permit = self.reviews.acquire().await;
        let asked = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![audience.to_owned()]) },
            ..TokenReview::default()
        };
        let answer =
            Api::<TokenReview>::all(self.client.clone()).create(&PostParams::default(), &asked).await?;
        drop(permit);
        let pod = identity(&answer, audience);
        self.kept.insert(digest, pod.clone());
        Ok(pod)
    }

    /// For a job that does not exist: uses up the same rate limit as a review of a bad token, so refusals do
    /// not reveal which jobs exist.
    ///
    /// # Errors
    /// [`ReviewError::TooMany`].
    pub fn refuse(&self, token: &str, job: &str, peer: IpAddr) -> Result<(), ReviewError> {
        let digest = digest(token, job);
        if self.kept.get(&digest).is_none() {
            self.admit(peer)?;
            self.kept.insert(digest, None);
        }
        Ok(())
    }

    fn admit(&self, peer: IpAddr) -> Result<(), ReviewError> {
        if self.by_address.admit(peer, Instant::now()) { Ok(()) } else { Err(ReviewError::TooMany) }
    }
}

/// Whether a token names this audience. Nothing of it is verified.
pub fn names_audience(token: &str, audience: &str) -> bool {
    let Some(payload) = token.split('.').nth(1) else { return false };
    // A `ByteString` is read from the other base64, with padding.
    let mut text = payload.replace('-', "+").replace('_', "/");
    text.extend(std::iter::repeat_n('=', text.len().wrapping_neg() % 4));
    let decoded = serde_json::from_value::<ByteString>(Value::String(text)).ok();
    let claims = decoded.and_then(|bytes| serde_json::from_slice::<Value>(&bytes.0).ok());
    claims.is_some_and(|claims| match &claims["aud"] {
        Value::Array(all) => all.iter().any(|one| one == audience),
        one => one == audience,
    })
}

/// The pod in a positive answer for that audience, for a service account's token bound to a pod.
fn identity(answer: &TokenReview, audience: &str) -> Option<PodIdentity> {
    let status = answer.status.as_ref()?;
    let good = status.authenticated == Some(true)
        && status.audiences.as_ref().is_some_and(|audiences| audiences.iter().any(|a| a == audience));
    let user = status.user.as_ref().filter(|_| good)?;
    let account = user.username.as_deref()?.strip_prefix("system:serviceaccount:")?;
    let (namespace, _) = account.split_once(':')?;
    let extra = |name: &str| {
        let values = user.extra.as_ref()?.get(&format!("authentication.kubernetes.io/{name}"))?;
        values.first().cloned()
    };
    Some(PodIdentity { namespace: namespace.to_owned(), name: extra("pod-name")?, uid: extra("pod-uid")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use serde_json::json;

    fn answer(audiences: Value, extra: Value) -> TokenReview {
        serde_json::from_value(json!({"spec": {}, "status": {"authenticated": true, "audiences": audiences,
            "user": {"username": "system:serviceaccount:team:default", "extra": extra}}}))
        .expect("a review")
    }

    #[test]
    fn only_a_pods_token_of_the_right_audience_is_an_identity() {
        let pod = json!({"authentication.kubernetes.io/pod-name": ["a-1-0"], "authentication.kubernetes.io/pod-uid": ["u"]});
        let good = identity(&answer(json!(["x"]), pod.clone()), "x");
        assert_eq!(
            good,
            Some(PodIdentity { namespace: "team".into(), name: "a-1-0".into(), uid: "u".into() })
        );
        assert_eq!(identity(&answer(json!(["other"]), pod.clone()), "x"), None);
        assert_eq!(
            identity(&answer(json!(null), pod), "x"),
            None,
            "an API server that ignores audiences is not believed"
        );
        assert_eq!(identity(&answer(json!(["x"]), json!({})), "x"), None);
    }

    #[test]
    fn the_audience_of_a_token_is_read_without_its_signature() {
        for length in 0..4 {
            let name = "x".repeat(length);
            let with = |audiences: Value| testing::token(&json!({"aud": audiences, "sub": name}));
            assert!(names_audience(&with(json!(["other", "a/j1"])), "a/j1"), "{length}");
            assert!(names_audience(&with(json!("a/j1")), "a/j1"), "{length}");
            assert!(!names_audience(&with(json!(["a/j2"])), "a/j1"), "{length}");
        }
        // Both letters that differ between the two kinds of base64.
        let odd = testing::token(&json!({"aud": ["a/j1"], "sub": "~~~???"}));
        assert!(odd.contains('-') && odd.contains('_'), "{odd}");
        assert!(names_audience(&odd, "a/j1"));
        for junk in ["", "t", "..", "a.b.c", "a.!!.c", "a.bnVsbA.c", "a.e30.c"] {
            assert!(!names_audience(junk, "a/j1"), "{junk}");
        }
    }
}
