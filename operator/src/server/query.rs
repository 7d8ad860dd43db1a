//! The query API on the TLS port: `/apis/query.andreas.dev/v1alpha1/...`, types in `andreas_api::query`.
//!
//! A caller needs a bearer token and a right on TrainingJobs in the namespace: `list` for its queue and for
//! changes, `get` for one job. The token is in `Authorization`, or in `Andreas-Authorization` where the API
//! server's proxy removed the former. The leader answers; any other replica says 503 with the reason `NotLeading`.
//!
//! What a caller can use up is bounded: requests per second of each user, one change of each user at a time,
//! a few answers in total, the size of a question, and the time of an answer. Users are easily made, so namespaces take turns: of those
//! asked about, each has one answer computed at a time, and one question in the common queue.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::names;
use andreas_api::query::{DEFAULT_QUEUE, Failure, MAX_BODY, MAX_QUEUE, NOT_LEADING, TOKEN_HEADER, path};
use andreas_runtime::access::{Access, Denied, Right};
use andreas_runtime::buckets::Buckets;
use andreas_runtime::clock;
use andreas_runtime::server::RequestConnection;
use andreas_runtime::watch::ObjectKey;
use axum::Router;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::Metrics;
use crate::query::{Background, Hypothetical, Live, QueryError, View, explain, jobs, what_if};

/// Requests of one user: burst and per second.
const BURST: u32 = 40;
const PER_SECOND: u32 = 10;
/// Answers computed at a time, and changes beside them.
const ANSWERS: usize = 2;
const CHANGES: usize = 1;
/// Maximum requests that wait for their turn.
const WAITING: usize = 64;
/// Maximum requests about one namespace at a time, of which one is computed.
const OF_NAMESPACE: usize = 16;
/// How long a request waits for its turn, longer than a change before it may take, and for the first view.
const TURN_WITHIN: Duration = Duration::from_secs(9);
const VIEW_WITHIN: Duration = Duration::from_secs(10);
/// How long an answer may take in all: less than the command gives the API server's proxy (20 s), and the server a request.
const ANSWER_WITHIN: Duration = Duration::from_secs(18);
/// How long an explanation goes on trying changes; a change that has begun is finished.
const TRIES_WITHIN: Duration = Duration::from_secs(8);
/// Maximum length of a namespace's name.
const MAX_NAMESPACE: usize = 63;

/// State of the query API.
pub struct QueryApi {
    access: Arc<Access>,
    live: Live,
    background: Arc<Background>,
    hypothetical: Arc<Hypothetical>,
    metrics: Metrics,
    users: Buckets<String>,
    answers: Turns,
    changes: Turns,
    waiting: Semaphore,
    /// Users with a change in progress.
    changing: Arc<Mutex<HashSet<String>>>,
}

impl QueryApi {
    /// An API on this state.
    pub fn new(
        access: Arc<Access>,
        live: Live,
        background: Arc<Background>,
        hypothetical: Hypothetical,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            access,
            live,
            background,
            hypothetical: Arc::new(hypothetical),
            metrics,
            users: Buckets::new(BURST, PER_SECOND),
            answers: Turns::new(ANSWERS),
            changes: Turns::new(CHANGES),
            waiting: Semaphore::new(WAITING),
            changing: Arc::default(),
        })
    }
}

/// The routes.
pub fn router(api: Arc<QueryApi>) -> Router {
    Router::new()
        .route(&path::queue("{namespace}"), get(queue))
        .route(&path::explain("{namespace}", "{job}"), get(explain_job))
        .route(&path::what_if("{namespace}"), post(what_if_changed))
        .route(&path::can("{namespace}"), post(can_be_on_time))
        .with_state(api)
}

/// An error as the caller gets it.
struct Refusal(Failure);

impl Refusal {
    fn new(code: StatusCode, reason: &str, message: impl Into<String>) -> Self {
        Self(Failure::new(code.as_u16(), reason, message))
    }

    fn busy(message: &str) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        let (code, reason) = match &denied {
            Denied::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Denied::Forbidden { .. } => (StatusCode::FORBIDDEN, "Forbidden"),
            Denied::TooMany => (StatusCode::TOO_MANY_REQUESTS, "TooManyRequests"),
            Denied::Unavailable(error) => {
                tracing::warn!(%error, "a token could not be reviewed");
                (StatusCode::SERVICE_UNAVAILABLE, "NotReady")
            }
        };
        Self::new(code, reason, denied.to_string())
    }
}

impl From<QueryError> for Refusal {
    fn from(error: QueryError) -> Self {
        let (code, reason) = match &error {
            QueryError::NoSuchJob(_) => (StatusCode::NOT_FOUND, "NotFound"),
            QueryError::Invalid { .. } => (StatusCode::BAD_REQUEST, "Invalid"),
            QueryError::Refused(_) => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
            QueryError::NotPlanned => (StatusCode::SERVICE_UNAVAILABLE, "NotReady"),
        };
        Self::new(code, reason, error.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.0.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer = (code, axum::Json(self.0)).into_response();
        if matches!(code, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }
}

/// What a request says of its sender.
struct Caller {
    token: Option<HeaderValue>,
    peer: IpAddr,
    via: Option<RequestConnection>,
}

impl Caller {
    fn from_request(request: &Request) -> Self {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
        let headers = request.headers();
        Self {
            token: headers.get(TOKEN_HEADER).or_else(|| headers.get(header::AUTHORIZATION)).cloned(),
            peer: peer.unwrap_or(IpAddr::from([0, 0, 0, 0])),
            via: request.extensions().get::<RequestConnection>().cloned(),
        }
    }
}

/// Checks token and right; then the user's rate.
async fn user_of(api: &QueryApi, caller: &Caller, right: Right<'_>) -> Result<String, Refusal> {
    let user = api.access.permit(caller.token.as_ref(), right, caller.peer).await?;
    if let Some(via) = &caller.via {
        via.authenticated(&user);
    }
    if !api.users.admit(user.clone(), tokio::time::Instant::now()) {
        return Err(Refusal::busy("more than ten questions a second: try again"));
    }
    Ok(user)
}

/// The user, who has the right.
async fn admit(api: &QueryApi, caller: &Caller, namespace: &str, verb: &str) -> Result<String, Refusal> {
    if namespace.is_empty() || namespace.len() > MAX_NAMESPACE {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "Invalid", "namespace: is no name of a namespace"));
    }
    let exists = api.live.has_namespace(namespace);
    let right = Right::Resource { group: names::GROUP, resource: "trainingjobs", verb, namespace, exists };
    let user = user_of(api, caller, right).await?;
    if api.live.leads() { Ok(user) } else { Err(not_leading()) }
}

fn not_leading() -> Refusal {
    let message = "this replica of the operator does not lead; another one answers, or soon will: try again";
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, NOT_LEADING, message)
}

fn no_plan() -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "NotReady", "there is no plan yet: try again")
}

/// Answers that are computed at a time, of which each namespace has one.
struct Turns {
    all: Arc<Semaphore>,
    of: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// What an answer holds while it is computed.
type Turn = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Turns {
    fn new(at_a_time: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(at_a_time)), of: Mutex::default() }
    }

    /// The namespace's own place, if it has not too many questions.
    fn place(&self, namespace: &str) -> Option<Arc<Semaphore>> {
        let mut of = self.of.lock();
        // Each question holds its namespace's place.
        of.retain(|_, place| Arc::strong_count(place) > 1);
        let place = of.entry(namespace.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(1)));
        (Arc::strong_count(place) <= OF_NAMESPACE).then(|| Arc::clone(place))
    }

    async fn take(&self, namespace: &str) -> Option<Turn> {
        let own = self.place(namespace)?.acquire_owned().await.ok()?;
        Some((own, Arc::clone(&self.all).acquire_owned().await.ok()?))
    }
}

async fn turn(api: &QueryApi, turns: &Turns, namespace: &str) -> Result<Turn, Refusal> {
    let busy = || Refusal::busy("too many questions: try again");
    let _place = api.waiting.try_acquire().map_err(|_| busy())?;
    let turn = tokio::time::timeout(TURN_WITHIN, turns.take(namespace)).await;
    turn.ok().flatten().ok_or_else(busy)
}

/// Computes an answer off the async threads. The turn is held until it is computed, also when the caller has
/// left.
async fn answer<T: Serialize + Send + 'static>(
    api: &QueryApi,
    question: &'static str,
    turn: Turn,
    compute: impl FnOnce() -> Result<T, QueryError> + Send + 'static,
) -> Result<Response, Refusal> {
    let work = move || {
        let _turn = turn;
        compute().map(|answer| serde_json::to_vec(&answer))
    };
    let failed = || {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "the answer could not be computed")
    };
    let computed = tokio::task::spawn_blocking(work).await.map_err(|_| failed())?;
    let text = computed?.map_err(|_| failed())?;
    api.metrics.answered(question, "answered");
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// The answer, or the refusal, counted. What takes too long is refused; its turn is held until it is computed.
async fn response(
    api: &QueryApi,
    question: &'static str,
    ask: impl Future<Output = Result<Response, Refusal>>,
) -> Response {
    let late = |_| {
        let message = format!("no answer within {} s: try again", ANSWER_WITHIN.as_secs());
        Err(Refusal::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message))
    };
    let answer = tokio::time::timeout(ANSWER_WITHIN, ask).await.unwrap_or_else(late);
    answer.unwrap_or_else(|refusal| {
        let result = match refusal.0.code {
            401 | 403 => "denied",
            429 => "busy",
            400 | 404 | 422 => "invalid",
            _ => "failed",
        };
        api.metrics.answered(question, result);
        refusal.into_response()
    })
}

/// A parameter of a query string.
fn parameter<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    let mut pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, text)| text)
}

/// `limit` of a query string.
fn limit(query: Option<&str>) -> Result<usize, Refusal> {
    let Some(text) = parameter(query, "limit") else { return Ok(DEFAULT_QUEUE) };
    let within = text.parse().ok().filter(|limit| (1..=MAX_QUEUE).contains(limit));
    within.ok_or_else(|| {
        let message = format!("limit: is not from 1 to {MAX_QUEUE}");
        Refusal::new(StatusCode::BAD_REQUEST, "Invalid", message)
    })
}

async fn queue(
    State(api): State<Arc<QueryApi>>,
    Path(namespace): Path<String>,
    request: Request,
) -> Response {
    let caller = Caller::from_request(&request);
    let limit = limit(request.uri().query());
    drop(request);
    let ask = async {
        admit(&api, &caller, &namespace, "list").await?;
        let view = api.background.newest(VIEW_WITHIN).await.ok_or_else(no_plan)?;
        let limit = limit?;
        let turn = turn(&api, &api.answers, &namespace).await?;
        let found = api.live.jobs(&namespace);
        answer(&api, "queue", turn, move || Ok(jobs::queue(&view, &namespace, &found, limit, clock::now())))
            .await
    };
    response(&api, "queue", ask).await
}

/// Whether `changes` of a query string is `Always`.
fn tries_always(query: Option<&str>) -> Result<bool, Refusal> {
    match parameter(query, "changes") {
        None | Some("Auto") => Ok(false),
        Some("Always") => Ok(true),
        Some(_) => Err(Refusal::new(StatusCode::BAD_REQUEST, "Invalid", "changes: is not Auto or Always")),
    }
}

async fn explain_job(
    State(api): State<Arc<QueryApi>>,
    Path((namespace, name)): Path<(String, String)>,
    request: Request,
) -> Response {
    let caller = Caller::from_request(&request);
    let always = tries_always(request.uri().query());
    drop(request);
    let ask = async {
        let user = admit(&api, &caller, &namespace, "get").await?;
        let view = api.background.newest(VIEW_WITHIN).await.ok_or_else(no_plan)?;
        let always = always?;
        // As much work as changes that are asked about one by one.
        let changing = if always { Some(Changing::begin(&api, user)?) } else { None };
        let turn = turn(&api, if always { &api.changes } else { &api.answers }, &namespace).await?;
        let key = ObjectKey { namespace, name: name.clone() };
        let job = api.live.job(&key);
        let hypothetical = Arc::clone(&api.hypothetical);
        let compute = move || {
            let job = job.ok_or(QueryError::NoSuchJob(name))?;
            let began = Instant::now();
            let goes_on = || began.elapsed() < TRIES_WITHIN;
            explain::explain(&view, &hypothetical, &job, clock::now(), changing.is_some(), &goes_on)
        };
        answer(&api, "explain", turn, compute).await
    };
    response(&api, "explain", ask).await
}

/// A user's change in progress.
struct Changing {
    user: String,
    users: Arc<Mutex<HashSet<String>>>,
}

impl Changing {
    fn begin(api: &QueryApi, user: String) -> Result<Self, Refusal> {
        let users = Arc::clone(&api.changing);
        if !users.lock().insert(user.clone()) {
            return Err(Refusal::busy("the answer to your last question of this kind is being computed"));
        }
        Ok(Self { user, users })
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.users.lock().remove(&self.user);
    }
}

/// Answers a question with a body: one of each user at a time.
async fn change<Q, A>(
    api: &QueryApi,
    question: &'static str,
    (namespace, request): (String, Request),
    compute: impl FnOnce(&View, &Hypothetical, &str, &Q) -> Result<A, QueryError> + Send + 'static,
) -> Result<Response, Refusal>
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + Send + 'static,
{
    let caller = Caller::from_request(&request);
    let user = admit(api, &caller, &namespace, "list").await?;
    let view = api.background.view(VIEW_WITHIN).await.ok_or_else(no_plan)?;
    let changing = Changing::begin(api, user)?;
    let invalid = |message: String| Refusal::new(StatusCode::BAD_REQUEST, "Invalid", message);
    let body = axum::body::to_bytes(request.into_body(), MAX_BODY).await.map_err(|_| {
        Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "Invalid",
            "the body is larger than 256 KiB, or was cut off",
        )
    })?;
    let asked: Q = serde_json::from_slice(&body).map_err(|error| invalid(format!("body: {error}")))?;
    let turn = turn(api, &api.changes, &namespace).await?;
    let (live, hypothetical) = (api.live.clone(), Arc::clone(&api.hypothetical));
    let compute = move || {
        let _changing = changing;
        // The change is made now, and not to the cluster of the last plan.
        let state = live.state(clock::now()).ok_or(QueryError::NotPlanned)?;
        let now = hypothetical.view(state, &view.latest)?;
        compute(&now, &hypothetical, &namespace, &asked)
    };
    answer(api, question, turn, compute).await
}

async fn what_if_changed(
    State(api): State<Arc<QueryApi>>,
    Path(namespace): Path<String>,
    request: Request,
) -> Response {
    response(&api, "whatif", change(&api, "whatif", (namespace, request), what_if::what_if)).await
}

async fn can_be_on_time(
    State(api): State<Arc<QueryApi>>,
    Path(namespace): Path<String>,
    request: Request,
) -> Response {
    response(&api, "can", change(&api, "can", (namespace, request), what_if::can)).await
}

#[cfg(test)]
mod tests;
