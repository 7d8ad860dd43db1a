//! One request to the operator's query API: through the API server's service proxy, else through port-forward.
//!
//! The proxy removes `Authorization`, so the caller's token is also in the header `Andreas-Authorization`. The operator
//! reviews it like any other. A kubeconfig with a client certificate has no token; then one of a service account is made.

use std::time::Duration;

use andreas_api::query::{Failure, JobObject, NOT_LEADING, TOKEN_HEADER};
use andreas_api::slim::SlimTrainingJob;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt as _;
use kube::client::Body;
use serde::de::DeserializeOwned;

use super::{AskArgs, job_file};
use crate::cluster::{Cluster, ClusterError, PodPort, Reply, Right, Selection, bearer_token};

/// Maximum answer: a queue of 20,000 jobs.
const MAX_ANSWER: usize = 64 << 20;
/// How long the proxy may take. The operator answers within 18 s, at worst that it takes too long.
const PROXY_WITHIN: Duration = Duration::from_secs(20);
/// Reasons of the operator's own refusals with 502, 503 or 504; the API server's proxy has others.
const OPERATOR_REASONS: [&str; 3] = ["NotReady", "Timeout", NOT_LEADING];
/// The proxy chooses one of the operator's replicas at random, and the leader alone answers: so often it is asked, and with this
/// pause.
const MAX_TRIES: usize = 12;
const PAUSE: Duration = Duration::from_millis(30);
/// Pause after the operator's answer that it is busy with an earlier question of the same person.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// Labels of the operator's pods.
const OPERATOR: &str = "app.kubernetes.io/name=andreas,app.kubernetes.io/component=operator";
/// Account that the chart makes for readers of all namespaces.
const READER: &str = "andreas-plan-reader";

/// A connection to the operator, and the namespace that is asked about.
pub struct Operator {
    args: AskArgs,
    cluster: Cluster,
    token: String,
    /// The namespace that is asked about.
    pub namespace: String,
}

impl Operator {
    /// Finds the cluster and a token.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used, or no token can be had.
    pub async fn connect(args: &AskArgs) -> anyhow::Result<Self> {
        let cluster = Cluster::connect(&args.cluster).await?;
        let namespace = cluster.namespace_or(args.namespace.as_deref());
        let own = match &args.service_account {
            Some(_) => None,
            None => bearer_token(&args.cluster).await?,
        };
        let token = match own {
            Some(token) => token,
            None => account_token(&cluster, args, &namespace).await?,
        };
        Ok(Self { args: args.clone(), cluster, token, namespace })
    }

    /// The job of a question, judged by the API server.
    ///
    /// # Errors
    /// What it refuses.
    pub async fn checked(&self, job: JobObject) -> anyhow::Result<JobObject> {
        job_file::checked(&self.cluster, &self.namespace, job).await
    }

    /// With this cluster and token, for tests.
    #[cfg(test)]
    pub fn with_token(args: &AskArgs, cluster: Cluster, token: String, namespace: String) -> Self {
        Self { args: args.clone(), cluster, token, namespace }
    }

    /// The cluster that is asked.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The TrainingJobs of the namespace, by the API server.
    ///
    /// # Errors
    /// When they may not be listed.
    pub async fn jobs(&self) -> Result<Vec<SlimTrainingJob>, ClusterError> {
        Ok(self.cluster.list(Some(&self.namespace), &Selection::default()).await?.items)
    }

    /// Asks for `path`.
    ///
    /// # Errors
    /// What the API server or the operator refuses.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.ask(Method::GET, path, Vec::new()).await
    }

    /// Asks with a body.
    ///
    /// # Errors
    /// What the API server or the operator refuses.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        question: &impl serde::Serialize,
    ) -> anyhow::Result<T> {
        self.ask(Method::POST, path, serde_json::to_vec(question)?).await
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Vec<u8>) -> anyhow::Result<T> {
        let reply = self.reply(&method, path, body).await?;
        if reply.status.is_success() {
            let answer = serde_json::from_slice(&reply.body);
            return answer.map_err(|error| {
                ClusterError::Failed(format!("the operator's answer is not understood: {error}")).into()
            });
        }
        Err(self.refusal(&reply).into())
    }

    /// The operator's answer: through the proxy, else through port-forward. The error is that of both ways.
    async fn reply(&self, method: &Method, path: &str, body: Vec<u8>) -> anyhow::Result<Reply> {
        let within = self.proxy_within();
        let by_proxy = self.by_proxy_to_leader(method, path, &body);
        let by_proxy = match tokio::time::timeout(within, by_proxy).await {
            Ok(reply) => {
                let reply = reply?;
                match self.failure_of_proxy(method, &reply) {
                    None => return Ok(reply),
                    Some(failure) => failure,
                }
            }
            Err(_) => ClusterError::Failed(format!("no answer within {:.0} s", within.as_secs_f64())),
        };
        let started = tokio::time::Instant::now();
        let limit = self.args.cluster.request_timeout;
        let mut reply = self.by_port_forward(method, path, body.clone()).await;
        // A question that went through the proxy after all is still being answered, and the operator takes one at a time of each person.
        while reply.as_ref().is_ok_and(|reply| reply.status == StatusCode::TOO_MANY_REQUESTS)
            && started.elapsed() < limit
        {
            tokio::time::sleep(BUSY_PAUSE).await;
            reply = self.by_port_forward(method, path, body.clone()).await;
        }
        reply.map_err(|by_port_forward| {
            // The exit code is that of the way that should work.
            anyhow::Error::new(by_proxy)
                .context(format!("port-forward to the operator: {by_port_forward}\nthe API server's proxy"))
        })
    }

    /// The proxy's limit, shorter than that of one request.
    fn proxy_within(&self) -> Duration {
        PROXY_WITHIN.min(self.args.cluster.request_timeout * 2 / 3)
    }

    fn request(&self, method: &Method, uri: String) -> Result<http::request::Builder, ClusterError> {
        let bearer = format!("Bearer {}", self.token);
        let mut value = http::HeaderValue::from_str(&bearer)
            .map_err(|_| ClusterError::Unauthorized("the token is no header value".to_owned()))?;
        value.set_sensitive(true);
        let request = Request::builder().method(method.clone()).uri(uri).header(TOKEN_HEADER, value);
        Ok(request.header(header::CONTENT_TYPE, "application/json"))
    }

    async fn by_proxy_to_leader(
        &self,
        method: &Method,
        path: &str,
        body: &[u8],
    ) -> Result<Reply, ClusterError> {
        let mut reply = self.by_proxy(method, path, body.to_vec()).await?;
        for _ in 1..MAX_TRIES {
            if !is_of_follower(&reply) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            reply = self.by_proxy(method, path, body.to_vec()).await?;
        }
        Ok(reply)
    }

    async fn by_proxy(&self, method: &Method, path: &str, body: Vec<u8>) -> Result<Reply, ClusterError> {
        let AskArgs { operator_namespace, operator_service, operator_port, .. } = &self.args;
        let proxy = format!(
            "/api/v1/namespaces/{operator_namespace}/services/https:{operator_service}:{operator_port}/proxy{path}"
        );
        let failed = |error: &dyn std::fmt::Display| ClusterError::Failed(format!("{proxy}: {error}"));
        let request = self.request(method, proxy.clone())?.body(Body::from(body)).map_err(|e| failed(&e))?;
        let right = self.right_to_proxy(method);
        let answer = self.cluster.client().send(request).await;
        let answer =
            answer.map_err(|error| ClusterError::from_client(error, self.cluster.url(), &right, None))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(|e| failed(&e))?;
        Ok(Reply { status, body: body.to_bytes() })
    }

    fn right_to_proxy(&self, method: &Method) -> Right {
        let verb = if *method == Method::POST { "create" } else { "get" };
        Right::new::<Service>(verb, Some(&self.args.operator_namespace)).on("proxy")
    }

    /// Why an answer is not the operator's: the caller may not use the proxy, or the API server does not reach the operator.
    fn failure_of_proxy(&self, method: &Method, reply: &Reply) -> Option<ClusterError> {
        let failure = serde_json::from_slice::<Failure>(&reply.body).ok();
        let message = failure.as_ref().map_or("", |failure| failure.message.as_str());
        match reply.status {
            StatusCode::FORBIDDEN if message.contains(" cannot ") && message.contains("services") => {
                Some(ClusterError::Forbidden { right: self.right_to_proxy(method) })
            }
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
                if !failure.as_ref().is_some_and(|said| OPERATOR_REASONS.contains(&said.reason.as_str())) =>
            {
                Some(self.refusal(reply))
            }
            _ => None,
        }
    }

    async fn by_port_forward(
        &self,
        method: &Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Reply, ClusterError> {
        let namespace = self.args.operator_namespace.as_str();
        let pods = self.cluster.list::<Pod>(Some(namespace), &Selection::labels(OPERATOR)).await?;
        let timeout = self.args.cluster.request_timeout;
        let mut last = Err(ClusterError::Failed(format!("namespace {namespace} has no pod of the operator")));
        for pod in pods.items {
            let name = pod.name_any();
            let to = PodPort { namespace, pod: &name, port: self.args.operator_port };
            let request = self.request(method, path.to_owned())?.body(Full::new(Bytes::from(body.clone())));
            let request = request.map_err(|error| ClusterError::Failed(error.to_string()))?;
            // The token is the caller's own. The tunnel ends at that pod, so only the pod gets it.
            last = self.cluster.ask_pod(&to, request, MAX_ANSWER, timeout).await;
            if last.as_ref().is_ok_and(|reply| !is_of_follower(reply)) {
                break;
            }
        }
        last
    }

    /// What a refusal means.
    fn refusal(&self, reply: &Reply) -> ClusterError {
        let failure: Option<Failure> = serde_json::from_slice(&reply.body).ok();
        let message = match failure {
            Some(failure) => failure.message,
            None => format!("{}: {}", reply.status, String::from_utf8_lossy(&reply.body).trim()),
        };
        match reply.status.as_u16() {
            401 => ClusterError::Unauthorized(message),
            403 => {
                let verb = if message.contains(" may not get ") { "get" } else { "list" };
                ClusterError::Forbidden {
                    right: Right::new::<andreas_api::TrainingJob>(verb, Some(&self.namespace)),
                }
            }
            // The operator names what does not exist; the API server's proxy and a program without this path do not.
            404 => match message.strip_prefix("there is no ") {
                Some(object) => ClusterError::NotFound(object.to_owned()),
                None => {
                    let AskArgs { operator_namespace, operator_service, .. } = &self.args;
                    ClusterError::NotServed(format!(
                        "questions at the Service {operator_service} in namespace {operator_namespace} (--operator-service, \
                         --operator-namespace)"
                    ))
                }
            },
            400 | 422 => ClusterError::Refused(message),
            _ => ClusterError::Failed(message),
        }
    }
}

/// Whether a replica that does not lead sent this.
fn is_of_follower(reply: &Reply) -> bool {
    reply.status == StatusCode::SERVICE_UNAVAILABLE
        && serde_json::from_slice::<Failure>(&reply.body).is_ok_and(|failure| failure.reason == NOT_LEADING)
}

/// A token for a caller whose kubeconfig has none.
async fn account_token(cluster: &Cluster, args: &AskArgs, namespace: &str) -> Result<String, ClusterError> {
    let (namespace, account) = match &args.service_account {
        Some(account) => (namespace, account.as_str()),
        None => (args.operator_namespace.as_str(), READER),
    };
    let made = cluster.account_token(namespace, account).await;
    let token = made.map_err(|error| match (&args.service_account, &error) {
        (None, ClusterError::Forbidden { .. } | ClusterError::NotFound(_)) => {
            ClusterError::NoCredentials(format!(
                "the kubeconfig has no token, and none of the service account {account} can be made ({error}); name one of your own \
                 namespace that may list its TrainingJobs: --service-account NAME"
            ))
        }
        _ => error,
    })?;
    token.ok_or_else(|| ClusterError::Failed("the API server made no token".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use clap::Parser;
    use http::Response;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{block_on, testing};
    use crate::exit;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        ask: AskArgs,
    }

    /// The message of the error and its exit code.
    fn asked(cluster: impl Fn() -> Cluster) -> (String, u8) {
        let line = Line::try_parse_from(["ask", "--request-timeout", "1"]).unwrap();
        let asked = block_on(async {
            let (cluster, token, namespace) = (cluster(), "t".to_owned(), "team-a".to_owned());
            let operator = Operator::with_token(&line.ask, cluster, token, namespace);
            Ok(operator.get::<Value>("/queue").await)
        });
        let error = asked.unwrap().expect_err("no operator answers");
        (format!("{error:#}"), exit::code(&error))
    }

    /// An API server whose proxy answers so, and on which there are no pods.
    fn answering(status: u16, body: Value) -> impl Fn() -> Cluster {
        move || {
            let body = body.clone();
            testing::cluster(move |line, _| match line.contains("/proxy/") {
                true => (status, body.clone()),
                false => (200, json!({"metadata": {"resourceVersion": "1"}, "items": []})),
            })
        }
    }

    const NO_POD: &str = "port-forward to the operator: namespace andreas-system has no pod of the operator";

    #[test]
    fn an_answer_that_is_not_the_operators_leads_to_port_forward_and_the_error_names_both_ways() {
        let dial = "error trying to reach service: dial tcp 10.0.0.1:8443: i/o timeout";
        for (code, reason) in [(502, "BadGateway"), (503, "ServiceUnavailable"), (504, "GatewayTimeout")] {
            let (text, exit) = asked(answering(code, testing::refusal(code, reason, dial, "").1));
            assert!(text.starts_with(NO_POD) && text.ends_with(dial), "{text}");
            assert_eq!(exit, exit::FAILED);
        }
        let (text, _) = asked(answering(502, json!("<html>no upstream</html>")));
        assert!(text.starts_with(NO_POD) && text.contains("no upstream"), "{text}");
        let cannot = "services \"https:andreas-operator:8443\" is forbidden: User \"x\" cannot get resource \"services/proxy\"";
        let (text, exit) = asked(answering(403, testing::refusal(403, "Forbidden", cannot, "").1));
        assert!(text.starts_with(NO_POD) && text.contains("missing right: get services/proxy"), "{text}");
        assert_eq!(exit, exit::NO_RIGHT);
    }

    #[test]
    fn a_refusal_of_the_operator_is_the_answer() {
        for (code, reason) in
            [(503, "NotReady"), (504, "Timeout"), (500, "InternalError"), (429, "TooManyRequests")]
        {
            let failure = serde_json::to_value(Failure::new(code, reason, "there is no plan yet: try again"));
            let (text, _) = asked(answering(code, failure.unwrap()));
            assert_eq!(text, "there is no plan yet: try again", "{code}");
        }
    }

    #[test]
    fn another_replica_is_asked_where_one_does_not_lead() {
        let failure = || serde_json::to_value(Failure::new(503, NOT_LEADING, "does not lead: try again"));
        for (followers, tries) in [(3, 4), (usize::MAX, MAX_TRIES)] {
            let asked_times = Arc::new(AtomicUsize::new(0));
            let counter = Arc::clone(&asked_times);
            let (text, _) = asked(move || {
                let counter = Arc::clone(&counter);
                testing::cluster(move |_, _| match counter.fetch_add(1, Ordering::Relaxed) < followers {
                    true => (503, failure().unwrap()),
                    false => (422, testing::refusal(422, "Invalid", "the leader's words", "").1),
                })
            });
            let expected = if followers == 3 { "the leader's words" } else { "does not lead: try again" };
            assert_eq!(text, expected);
            assert_eq!(asked_times.load(Ordering::Relaxed), tries);
        }
    }

    #[test]
    fn a_proxy_that_does_not_answer_leaves_time_for_port_forward() {
        let (text, _) = asked(|| {
            let service = tower::service_fn(|request: Request<Body>| async move {
                if request.uri().path().contains("/proxy/") {
                    std::future::pending::<()>().await;
                }
                let list = json!({"metadata": {"resourceVersion": "1"}, "items": []}).to_string();
                Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(list))))
            });
            Cluster::from_client(kube::Client::new(service, "default"), "default")
        });
        assert!(text.starts_with(NO_POD) && text.ends_with("proxy: no answer within 1 s"), "{text}");
    }
}
