//! Authentication and authorization of requests: a bearer token (TokenReview), and a [`Right`]
//! (SubjectAccessReview).
//!
//! The right to a page is that to `get` its path as a non-resource URL, like Kubernetes' own `/metrics`. A
//! ClusterRole with `nonResourceURLs` and the verb `get` grants it. Answers are cached for 30 seconds. [`Reviews`] limits the reviews that one
//! address can cause. Behind one address may be everybody, as behind the API server's proxy: so what forged tokens use up there is closed
//! neither to a token that was good within the last hour, nor to a first question about each namespace.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::buckets::{Buckets, Reviews};
use crate::remembered::Remembered;
use crate::server::RequestConnection;

/// Cache time of an answer.
const REMEMBERED: Duration = Duration::from_secs(30);
/// Maximum number of cached answers.
const MAX_KEPT: usize = 4_096;
/// For how long a token that was good is reviewed again whatever others send from its address.
const GOOD_FOR: Duration = Duration::from_secs(3600);
/// Reviews of one such token for further rights: burst, and per second.
const OF_TOKEN: (u32, u32) = (40, 10);
/// Reviews for one namespace where its address has used up its share: burst, and per second.
const OF_NAMESPACE: (u32, u32) = (4, 1);
/// Maximum reviews in flight.
const REVIEWS: usize = 4;
/// Maximum length of a token in bytes; projected tokens have about 1,200 characters.
const MAX_TOKEN: usize = 8 * 1024;

/// The reason why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// No bearer token, or a token that no authenticator knows.
    #[error("a bearer token of this cluster is needed")]
    Unauthorized,
    /// The token is valid, but its user lacks the right.
    #[error("{user} may not {right}")]
    Forbidden {
        /// Name of the user.
        user: String,
        /// What it may not do, for example `get /metrics`.
        right: String,
    },
    /// The sender's address caused too many reviews.
    #[error("too many unknown tokens from one address: try again")]
    TooMany,
    /// The API server refused the review or failed.
    #[error("the API server did not review the token: try again")]
    Unavailable(#[source] Box<kube::Error>),
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let code = match &self {
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable(error) => {
                tracing::warn!(%error, "a token could not be reviewed");
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        let mut answer = (code, format!("{self}\n")).into_response();
        let name = match code {
            StatusCode::UNAUTHORIZED => (header::WWW_AUTHENTICATE, "Bearer"),
            _ => (header::RETRY_AFTER, "1"),
        };
        if code != StatusCode::FORBIDDEN {
            answer.headers_mut().insert(name.0, HeaderValue::from_static(name.1));
        }
        answer
    }
}

/// A right that a request needs.
#[derive(Clone, Copy, Debug)]
pub enum Right<'a> {
    /// To `get` this path as a non-resource URL.
    Path(&'a str),
    /// To use objects of a kind in a namespace.
    Resource {
        /// API group of the kind.
        group: &'a str,
        /// Plural name of the kind.
        resource: &'a str,
        /// For example `get` or `list`.
        verb: &'a str,
        /// The namespace.
        namespace: &'a str,
        /// Whether there is that namespace: only then does it have a share of its own of the reviews.
        exists: bool,
    },
}

impl fmt::Display for Right<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "get {path}"),
            Self::Resource { group, resource, verb, namespace, .. } => {
                write!(f, "{verb} {resource}.{group} in namespace {namespace}")
            }
        }
    }
}

#[derive(Clone)]
enum Answer {
    Allowed(String),
    Forbidden(String),
    Unauthorized,
}

/// Reviews requests with the API server and caches the answers. Only digests of tokens are kept.
pub struct Access {
    client: Client,
    reviews: Semaphore,
    by_address: Reviews,
    by_token: Buckets<Digest>,
    by_namespace: Buckets<String>,
    good: Remembered<Digest, ()>,
    kept: Remembered<Digest, Answer>,
}

impl Access {
    /// Creates it with an empty cache.
    #[must_use]
    pub fn new(client: Client) -> Arc<Self> {
        let (reviews, kept) = (Semaphore::new(REVIEWS), Remembered::new(MAX_KEPT, REMEMBERED));
        Arc::new(Self {
            client,
            reviews,
            by_address: Reviews::by_address(),
            by_token: Buckets::new(OF_TOKEN.0, OF_TOKEN.1),
            by_namespace: Buckets::new(OF_NAMESPACE.0, OF_NAMESPACE.1),
            good: Remembered::new(MAX_KEPT, GOOD_FOR),
            kept,
        })
    }

    /// Returns the user of the request if it may `get` the path.
    ///
    /// # Errors
    /// [`Denied`]
    pub async fn check(&self, headers: &HeaderMap, path: &str, peer: IpAddr) -> Result<String, Denied> {
        self.permit(headers.get(header::AUTHORIZATION), Right::Path(path), peer).await
    }

    /// Returns the user of the token in an `Authorization` header (or one like it) if it has the right.
    ///
    /// # Errors
    /// [`Denied`]
    pub async fn permit(
        &self,
        authorization: Option<&HeaderValue>,
        right: Right<'_>,
        peer: IpAddr,
    ) -> Result<String, Denied> {
        let token = authorization.and_then(bearer).ok_or(Denied::Unauthorized)?;
        let purpose = digest(token, &right.to_string());
        let answer = match self.kept.get(&purpose) {
            Some(answer) => answer,
            None => {
                let of_token = digest(token, "");
                if !self.may_review(of_token, right, peer) {
                    return Err(Denied::TooMany);
                }
                let permit = self.reviews.acquire().await;
                let answer =
                    self.ask(token, right).await.map_err(|error| Denied::Unavailable(Box::new(error)))?;
                drop(permit);
                if !matches!(answer, Answer::Unauthorized) {
                    self.good.insert(of_token, ());
                }
                self.kept.insert(purpose, answer.clone());
                answer
            }
        };
        match answer {
            Answer::Allowed(user) => Ok(user),
            Answer::Forbidden(user) => Err(Denied::Forbidden { user, right: right.to_string() }),
            Answer::Unauthorized => Err(Denied::Unauthorized),
        }
    }

    /// Whether a token is reviewed now, by what it and its like have used up.
    fn may_review(&self, token: Digest, right: Right<'_>, peer: IpAddr) -> bool {
        let now = Instant::now();
        if self.good.get(&token).is_some() {
            return self.by_token.admit(token, now);
        }
        let of_namespace = || match right {
            Right::Resource { namespace, exists: true, .. } => {
                self.by_namespace.admit(namespace.to_owned(), now)
            }
            Right::Resource { .. } | Right::Path(_) => false,
        };
        self.by_address.admit(peer, now) || of_namespace()
    }

    async fn ask(&self, token: &str, right: Right<'_>) -> Result<Answer, kube::Error> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..TokenReview::default()
        };
        let reviews = Api::<TokenReview>::all(self.client.clone());
        let status = reviews.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(Answer::Unauthorized);
        };
        let name = user.username.clone().unwrap_or_default();
        let review = SubjectAccessReview { spec: review_spec(user, right), ..SubjectAccessReview::default() };
        let reviews = Api::<SubjectAccessReview>::all(self.client.clone());
        let status = reviews.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
        let allowed = status.allowed && status.denied != Some(true);
        Ok(if allowed { Answer::Allowed(name) } else { Answer::Forbidden(name) })
    }
}

fn review_spec(user: UserInfo, right: Right<'_>) -> SubjectAccessReviewSpec {
    let text = |text: &str| Some(text.to_owned());
    let (path, resource) = match right {
        Right::Path(path) => (Some(NonResourceAttributes { path: text(path), verb: text("get") }), None),
        Right::Resource { group, resource, verb, namespace, .. } => {
            let attributes = ResourceAttributes {
                group: text(group),
                resource: text(resource),
                verb: text(verb),
                namespace: text(namespace),
                ..ResourceAttributes::default()
            };
            (None, Some(attributes))
        }
    };
    SubjectAccessReviewSpec {
        user: user.username,
        groups: user.groups,
        uid: user.uid,
        extra: user.extra,
        non_resource_attributes: path,
        resource_attributes: resource,
    }
}

/// Middleware that passes only requests from users who may `get` the path.
pub async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
    let peer = peer.unwrap_or(IpAddr::from([0, 0, 0, 0]));
    match access.check(request.headers(), request.uri().path(), peer).await {
        Ok(user) => {
            if let Some(via) = request.extensions().get::<RequestConnection>() {
                via.authenticated(&user);
            }
            next.run(request).await
        }
        Err(denied) => denied.into_response(),
    }
}

/// Digest of a token and its purpose.
pub type Digest = [u8; 32];

/// The cache key of an answer: a digest of the token and its purpose.
#[must_use]
pub fn digest(token: &str, purpose: &str) -> Digest {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    context.update(&(purpose.len() as u64).to_be_bytes());
    context.update(purpose.as_bytes());
    context.update(token.as_bytes());
    let mut out = Digest::default();
    out.copy_from_slice(context.finish().as_ref());
    out
}

/// The bearer token of an Authorization header.
#[must_use]
pub fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= MAX_TOKEN).then_some(token)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use axum::routing::get;
    use axum::{Router, middleware};
    use http_body_util::BodyExt;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tower::{ServiceExt, service_fn};

    use super::*;

    /// An API server that knows the tokens `admin` and `tenant`, and grants `/page` to the first.
    fn api_server(calls: &Arc<Mutex<Vec<String>>>) -> Client {
        let calls = Arc::clone(calls);
        let service = service_fn(move |request: Request<kube::client::Body>| {
            let calls = Arc::clone(&calls);
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let spec = serde_json::from_slice::<Value>(&body).unwrap()["spec"].clone();
                let status = if path.ends_with("/tokenreviews") {
                    match spec["token"].as_str() {
                        Some(name @ ("admin" | "tenant")) => {
                            json!({"authenticated": true, "user": {"username": name, "groups": ["all"]}})
                        }
                        _ => json!({"authenticated": false}),
                    }
                } else if spec["resourceAttributes"].is_object() {
                    json!({"allowed": true})
                } else {
                    assert_eq!(spec["nonResourceAttributes"], json!({"path": "/page", "verb": "get"}));
                    assert_eq!(spec["groups"], json!(["all"]));
                    json!({"allowed": spec["user"] == "admin"})
                };
                calls.lock().push(path);
                let answer = json!({"spec": spec, "status": status});
                Ok::<_, Infallible>(http::Response::new(Body::from(answer.to_string())))
            }
        });
        Client::new(service, "default")
    }

    async fn ask(router: &Router, token: Option<&str>) -> StatusCode {
        let mut request = Request::get("/page");
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status()
    }

    #[tokio::test(start_paused = true)]
    async fn only_those_with_the_right_read_a_page_and_answers_are_remembered() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let access = Access::new(api_server(&calls));
        let router = Router::new()
            .route("/page", get(|| async { "secret" }))
            .layer(middleware::from_fn_with_state(access, guard));

        assert_eq!(ask(&router, None).await, StatusCode::UNAUTHORIZED);
        assert!(calls.lock().is_empty(), "nobody is asked for a request without a token");
        for _ in 0..5 {
            assert_eq!(ask(&router, Some("admin")).await, StatusCode::OK);
            assert_eq!(ask(&router, Some("tenant")).await, StatusCode::FORBIDDEN);
            assert_eq!(ask(&router, Some("forged")).await, StatusCode::UNAUTHORIZED);
        }
        assert_eq!(calls.lock().len(), 5, "one review for each token, and one for each right: {calls:?}");
        tokio::time::advance(REMEMBERED).await;
        assert_eq!(ask(&router, Some("admin")).await, StatusCode::OK);
        assert_eq!(calls.lock().len(), 7, "asked again after half a minute");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_cannot_cause_reviews_without_bound() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let access = Access::new(api_server(&calls));
        let peer = IpAddr::from([10, 0, 0, 1]);
        let mut refused = 0;
        for n in 0..1_000 {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, format!("Bearer forged-{n}").parse().unwrap());
            refused +=
                usize::from(matches!(access.check(&headers, "/page", peer).await, Err(Denied::TooMany)));
        }
        assert_eq!((refused, calls.lock().len()), (744, 256));
    }

    #[tokio::test(start_paused = true)]
    async fn forged_tokens_of_an_address_close_it_neither_to_good_tokens_nor_to_first_questions() {
        let access = Access::new(api_server(&Arc::default()));
        let peer = IpAddr::from([10, 0, 0, 1]);
        let ask = async |token: &str, right| {
            let header = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
            access.permit(Some(&header), right, peer).await
        };
        let jobs = |namespace| Right::Resource {
            group: "andreas.dev",
            resource: "trainingjobs",
            verb: "list",
            namespace,
            exists: true,
        };
        assert!(ask("admin", Right::Path("/page")).await.is_ok());
        let mut reviewed = 0;
        for n in 0..1_000 {
            let answer = ask(&format!("forged-{n}"), jobs("theirs")).await;
            reviewed += usize::from(matches!(answer, Err(Denied::Unauthorized)));
        }
        assert_eq!(reviewed, 255 + 4, "of the address, one of which was good, and of the namespace");
        let nowhere = Right::Resource {
            group: "andreas.dev",
            resource: "trainingjobs",
            verb: "list",
            namespace: "made-up",
            exists: false,
        };
        for n in 0..100 {
            let answer = ask(&format!("made-up-{n}"), nowhere).await;
            assert!(matches!(answer, Err(Denied::TooMany)), "a namespace that there is not has no share");
        }
        // The cached answer is old by then; the token was good an hour ago at most.
        tokio::time::advance(REMEMBERED).await;
        for n in 0..1_000 {
            drop(ask(&format!("new-{n}"), jobs("theirs")).await);
        }
        assert!(ask("admin", Right::Path("/page")).await.is_ok());
        assert!(matches!(ask("forged", Right::Path("/page")).await, Err(Denied::TooMany)));
        assert!(
            ask("tenant", jobs("mine")).await.is_ok(),
            "a first token for a namespace that nobody floods"
        );
    }

    #[test]
    fn a_token_for_one_purpose_is_not_remembered_for_another() {
        assert_ne!(digest("t", "ab"), digest("t", "ac"));
        assert_ne!(digest("bt", "a"), digest("t", "ab"));
    }

    #[test]
    fn headers_are_read_with_care() {
        let read = |text: &'static str| bearer(&HeaderValue::from_static(text)).map(str::to_owned);
        assert_eq!(read("Bearer abc"), Some("abc".into()));
        assert_eq!(read("bearer  abc "), Some("abc".into()));
        assert_eq!(read("Basic abc"), None);
        assert_eq!(read("Bearer"), None);
        assert_eq!(read("Bearer  "), None);
    }
}
