//! One request to the operator's query API: through the API server's service proxy, else through port-forward.
//!
//! The proxy removes `Authorization`, so the caller's token is also in the header `Andreas-Authorization`. The operator
//! reviews it like any other. A kubeconfig with a client certificate has no token; then one of a service account is made.

use std::time::Duration;

use andreas_query::{Failure, TOKEN_HEADER};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use kube::client::Body;
use serde::de::DeserializeOwned;

use super::AskArgs;
use crate::cluster::{Authority, Cluster, ClusterError, PodPort, Reply, Right, Selection, bearer_token};

/// Maximum answer: a queue of 20,000 jobs.
const MAX_ANSWER: usize = 64 << 20;
/// Life of a service account's token, s; the API server makes none that is shorter.
const TOKEN_LIFE: i64 = 600;
/// Labels of the operator's pods.
const OPERATOR: &str = "app.kubernetes.io/name=andreas,app.kubernetes.io/component=operator";
/// Account that the chart makes for readers of all namespaces.
const READER: &str = "andreas-plan-reader";

/// A connection to the operator, and the namespace that is asked about.
pub struct Operator<'a> {
    args: &'a AskArgs,
    cluster: Cluster,
    token: String,
    /// The namespace that is asked about.
    pub namespace: String,
}

impl<'a> Operator<'a> {
    /// Finds the cluster and a token.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used, or no token can be had.
    pub async fn connect(args: &'a AskArgs) -> anyhow::Result<Self> {
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
        Ok(Self { args, cluster, token, namespace })
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
        let reply = match self.by_proxy(&method, path, body.clone()).await? {
            reply if self.proxy_is_refused(&reply) => self.by_port_forward(&method, path, body).await?,
            reply => reply,
        };
        if reply.status.is_success() {
            let answer = serde_json::from_slice(&reply.body);
            return answer.map_err(|error| {
                ClusterError::Failed(format!("the operator's answer is not understood: {error}")).into()
            });
        }
        Err(self.refusal(&reply).into())
    }

    fn request(&self, method: &Method, uri: String) -> Result<http::request::Builder, ClusterError> {
        let bearer = format!("Bearer {}", self.token);
        let mut value = http::HeaderValue::from_str(&bearer)
            .map_err(|_| ClusterError::Unauthorized("the token is no header value".to_owned()))?;
        value.set_sensitive(true);
        let request = Request::builder().method(method.clone()).uri(uri).header(TOKEN_HEADER, value);
        Ok(request.header(header::CONTENT_TYPE, "application/json"))
    }

    async fn by_proxy(&self, method: &Method, path: &str, body: Vec<u8>) -> Result<Reply, ClusterError> {
        let AskArgs { operator_namespace, operator_service, operator_port, .. } = self.args;
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
        Right::of::<Service>(verb, Some(&self.args.operator_namespace)).on("proxy")
    }

    /// Whether the API server itself refuses: the caller may not use the proxy, or there is none.
    fn proxy_is_refused(&self, reply: &Reply) -> bool {
        let failure = serde_json::from_slice::<Failure>(&reply.body).ok();
        let message = failure.map(|failure| failure.message).unwrap_or_default();
        reply.status == StatusCode::FORBIDDEN && message.contains(" cannot ") && message.contains("services")
    }

    async fn by_port_forward(
        &self,
        method: &Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Reply, ClusterError> {
        let namespace = self.args.operator_namespace.as_str();
        let without = ClusterError::Forbidden { right: self.right_to_proxy(method) };
        let Ok(pods) = self.cluster.list::<Pod>(Some(namespace), &Selection::labels(OPERATOR)).await else {
            return Err(without);
        };
        let timeout = Duration::from_secs(self.args.cluster.request_timeout);
        let mut last = without;
        for pod in pods.items {
            let name = pod.name_any();
            let to = PodPort { namespace, pod: &name, port: self.args.operator_port };
            let request = self.request(method, path.to_owned())?.body(Full::new(Bytes::from(body.clone())));
            let request = request.map_err(|error| ClusterError::Failed(error.to_string()))?;
            // The token is the caller's own. The tunnel ends at that pod, so only the pod gets it.
            match self.cluster.ask_pod(&to, &Authority::Tunnel, request, MAX_ANSWER, timeout).await {
                Ok(reply) => return Ok(reply),
                Err(error) => last = error,
            }
        }
        Err(last)
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
                    right: Right::of::<andreas_api::TrainingJob>(verb, Some(&self.namespace)),
                }
            }
            // The error says itself that it does not exist.
            404 => {
                let object = message.strip_prefix("there is no ").unwrap_or(&message);
                ClusterError::NotFound(object.strip_suffix(" not found").unwrap_or(object).to_owned())
            }
            400 | 422 => ClusterError::Refused(message),
            _ => ClusterError::Failed(message),
        }
    }
}

/// A token for a caller whose kubeconfig has none.
async fn account_token(cluster: &Cluster, args: &AskArgs, namespace: &str) -> Result<String, ClusterError> {
    let (namespace, account) = match &args.service_account {
        Some(account) => (namespace, account.as_str()),
        None => (args.operator_namespace.as_str(), READER),
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client(), namespace);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec { expiration_seconds: Some(TOKEN_LIFE), ..TokenRequestSpec::default() }),
        ..TokenRequest::default()
    };
    let right = Right::of::<ServiceAccount>("create", Some(namespace)).on("token");
    let made = accounts.create_token_request(account, &PostParams::default(), &request).await;
    let made = made.map_err(|error| {
        let error = ClusterError::from_client(error, cluster.url(), &right, Some(account));
        match args.service_account {
            Some(_) => error,
            None => ClusterError::Unauthorized(format!(
                "the kubeconfig has no token, and none of the service account {account} can be made ({error}); name one of your own \
                 namespace that may list its TrainingJobs: --service-account NAME"
            )),
        }
    })?;
    let token = made.status.and_then(|status| status.token);
    token.ok_or_else(|| ClusterError::Failed("the API server made no token".to_owned()))
}
