//! Who sends a report: TokenReview with the job's own audience, remembered for a minute by digest.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::peers::Peers;

/// How long an answer is remembered.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Answers kept at most.
const MAX_KEPT: usize = 20_000;
/// Longest token that is looked at; projected tokens have about 1,200 characters.
const MAX_TOKEN: usize = 8 * 1024;
/// Reviews in flight.
const REVIEWS: usize = 8;

/// The pod that a token was issued to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Of the pod and its service account.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
}

/// Why nothing is known of a token. The sender tries again.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The sender's address has asked too much.
    #[error("too many unknown tokens from one address")]
    TooMany,
    /// The API server refused or failed.
    #[error("the API server did not review a token: {0}")]
    Api(#[from] kube::Error),
}

/// Digest of a token and the audience asked for.
type Digest = [u8; 32];

/// Reviews tokens and remembers the answers. Only digests are kept.
pub struct Tokens {
    client: Client,
    reviews: Semaphore,
    peers: Peers,
    kept: Mutex<HashMap<Digest, (Option<PodIdentity>, Instant)>>,
}

impl Tokens {
    /// Nothing is remembered yet.
    pub fn new(client: Client) -> Self {
        let reviews = Semaphore::new(REVIEWS);
        Self { client, reviews, peers: Peers::default(), kept: Mutex::new(HashMap::new()) }
    }

    /// The pod that `token`, sent from `peer`, was issued to for `audience`; `None`: it was not.
    ///
    /// # Errors
    /// When `peer` asks too much, or the API server cannot be asked.
    pub async fn review(
        &self,
        token: &str,
        audience: &str,
        peer: IpAddr,
    ) -> Result<Option<PodIdentity>, ReviewError> {
        let digest = digest(token, audience);
        if let Some(pod) = self.remembered(&digest) {
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
        self.remember(digest, pod.clone());
        Ok(pod)
    }

    /// For a job that does not exist: uses up what a review of a bad token would, so that nobody learns from being refused
    /// in another way which jobs there are.
    ///
    /// # Errors
    /// [`ReviewError::TooMany`].
    pub fn refuse(&self, token: &str, job: &str, peer: IpAddr) -> Result<(), ReviewError> {
        let digest = digest(token, job);
        if self.remembered(&digest).is_none() {
            self.admit(peer)?;
            self.remember(digest, None);
        }
        Ok(())
    }

    fn admit(&self, peer: IpAddr) -> Result<(), ReviewError> {
        if self.peers.admit(peer, Instant::now()) { Ok(()) } else { Err(ReviewError::TooMany) }
    }

    fn remembered(&self, digest: &Digest) -> Option<Option<PodIdentity>> {
        let kept = self.kept.lock();
        kept.get(digest).filter(|(_, until)| *until > Instant::now()).map(|(pod, _)| pod.clone())
    }

    fn remember(&self, digest: Digest, pod: Option<PodIdentity>) {
        let mut kept = self.kept.lock();
        if kept.len() >= MAX_KEPT {
            let now = Instant::now();
            kept.retain(|_, (_, until)| *until > now);
            if kept.len() >= MAX_KEPT {
                kept.clear();
            }
        }
        kept.insert(digest, (pod, Instant::now() + REMEMBERED));
    }
}

fn digest(token: &str, audience: &str) -> Digest {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    context.update(&(audience.len() as u64).to_be_bytes());
    context.update(audience.as_bytes());
    context.update(token.as_bytes());
    let mut out = Digest::default();
    out.copy_from_slice(context.finish().as_ref());
    out
}

/// The pod in an answer that says yes, for that audience, of a service account's token bound to a pod.
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

/// The bearer token of an Authorization header.
pub fn bearer(value: &http::HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= MAX_TOKEN).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

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
    fn a_token_for_one_job_is_not_remembered_for_another() {
        assert_ne!(digest("t", "ab"), digest("t", "ac"));
        assert_ne!(digest("bt", "a"), digest("t", "ab"));
    }

    #[test]
    fn headers_are_read_with_care() {
        let read = |text: &'static str| bearer(&http::HeaderValue::from_static(text)).map(str::to_owned);
        assert_eq!(read("Bearer abc"), Some("abc".into()));
        assert_eq!(read("bearer  abc "), Some("abc".into()));
        assert_eq!(read("Basic abc"), None);
        assert_eq!(read("Bearer"), None);
        assert_eq!(read("Bearer  "), None);
    }
}
