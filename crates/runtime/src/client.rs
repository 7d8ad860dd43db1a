//! A Kubernetes client in which every call has a deadline.
//!
//! kube's own client sets no read timeout, because watches and streams are long-lived. An API server that
//! accepts a connection but never answers (etcd lost, a partition) would block a reconciler forever. Here
//! every request except a stream has one deadline for retries, headers and body. A stream is a watch or the
//! log of a pod. It has a deadline for its headers; [`crate::watch`] handles the rest of a watch.

use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{HeaderValue, Request, Response, header};
use http_body::{Frame, SizeHint};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tower::{BoxError, Layer, Service};

use crate::kubeconfig::{Choice, Unusable};
use crate::{clock, kubeconfig};

/// Flags that select the API server; flatten them into a server's own flags.
#[derive(Clone, Debug, Args)]
pub struct ClientArgs {
    /// Kubeconfig file. Default: the pod's service account, else $KUBECONFIG or ~/.kube/config.
    #[arg(long, env = "ANDREAS_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current context.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Deadline of one call to the API server, including retries, in seconds.
    #[arg(long, env = "ANDREAS_API_TIMEOUT", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=300), value_name = "SECONDS")]
    pub api_timeout: u64,
}

/// Errors when a client is made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig cannot be used, or has no credentials.
    #[error(transparent)]
    Kubeconfig(#[from] Unusable),
    /// The pod's service account is unusable.
    #[error("the pod's service account cannot be used")]
    InCluster(#[source] kube::config::InClusterError),
    /// The user agent has characters that are invalid in a header.
    #[error("user agent {0:?} is not a header value")]
    UserAgent(String),
}

/// Creates a client from flags. `user_agent` appears in audit logs and flow schemas, for example
/// `andreas-extender/0.1.0`.
///
/// # Errors
/// When no usable configuration is found. The API server itself is not contacted.
pub async fn connect(args: &ClientArgs, user_agent: &str) -> Result<Client, ClientError> {
    let config = configuration(args)?;
    tracing::info!(address = %config.cluster_url, "API server");
    build(config, user_agent, Duration::from_secs(args.api_timeout))
}

/// The configuration that [`connect`] uses.
///
/// # Errors
/// When none is found or it does not parse.
pub fn configuration(args: &ClientArgs) -> Result<Config, ClientError> {
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    if args.kubeconfig.is_none() && args.context.is_none() && in_pod {
        return Config::incluster().map_err(ClientError::InCluster);
    }
    let choice = Choice { context: args.context.clone(), ..Choice::default() };
    Ok(kubeconfig::configuration(&kubeconfig::read(args.kubeconfig.as_deref())?, &choice)?)
}

/// A client for `config` with our user agent and a deadline of `per_call` per request.
///
/// # Errors
/// When the user agent is no header value, TLS cannot be set up, or there are no credentials.
pub fn build(mut config: Config, user_agent: &str, per_call: Duration) -> Result<Client, ClientError> {
    crate::install_crypto();
    let agent =
        HeaderValue::from_str(user_agent).map_err(|_| ClientError::UserAgent(user_agent.to_owned()))?;
    config.headers.push((header::USER_AGENT, agent));
    config.connect_timeout = Some(per_call.min(Duration::from_secs(5)));
    kubeconfig::clean_token(&mut config)?;
    let plug_in = kubeconfig::plug_in(&config);
    let builder =
        ClientBuilder::try_from(config).map_err(|error| kubeconfig::unusable(&error, plug_in.as_deref()))?;
    Ok(builder.with_layer(&DeadlineLayer { per_call }).build())
}

/// A call took longer than its deadline.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {0:?}")]
pub struct DeadlineExceeded(pub Duration);

/// Sets one deadline for headers and body of each request; for watches and logs, the headers only.
#[derive(Clone, Debug)]
pub struct DeadlineLayer {
    /// Maximum time from sending the request to the last byte of the answer.
    pub per_call: Duration,
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = DeadlineService<S>;
    fn layer(&self, inner: S) -> Self::Service {
        DeadlineService { inner, per_call: self.per_call }
    }
}

/// See [`DeadlineLayer`].
#[derive(Clone, Debug)]
pub struct DeadlineService<S> {
    inner: S,
    per_call: Duration,
}

impl<S, B> Service<Request<Body>> for DeadlineService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<DeadlineBody<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let per_call = self.per_call;
        let deadline = Instant::now() + per_call;
        let streams = is_watch(&request) || is_log(request.uri().path());
        let sent = std::time::Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let response = timeout_at(deadline, answer).await.map_err(|_| DeadlineExceeded(per_call))?;
            let response = response.map_err(Into::into)?;
            clock::observe(response.headers(), sent);
            let timer = (!streams).then(|| Box::pin(sleep_until(deadline)));
            Ok(response.map(|body| DeadlineBody { body, timer, per_call }))
        })
    }
}

fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

/// Whether a path ends in `namespaces/NAMESPACE/pods/POD/log`. A log may be of any length, and a pod may be called `log`.
fn is_log(path: &str) -> bool {
    let mut end = path.rsplit('/');
    end.next() == Some("log") && end.nth(1) == Some("pods") && end.nth(1) == Some("namespaces")
}

/// A body that fails once its deadline has passed.
pub struct DeadlineBody<B> {
    body: B,
    timer: Option<Pin<Box<Sleep>>>,
    per_call: Duration,
}

impl<B> http_body::Body for DeadlineBody<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let per_call = self.per_call;
        match self.timer.as_mut().map(|timer| timer.as_mut().poll(cx)) {
            Some(Poll::Ready(())) => Poll::Ready(Some(Err(DeadlineExceeded(per_call).into()))),
            _ => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use tower::service_fn;

    /// An API server that sends the headers at once and then nothing.
    fn client_of_a_silent_server() -> Client {
        let silent = service_fn(|_: Request<Body>| async {
            let never = futures::stream::pending::<Result<Bytes, Infallible>>();
            Ok::<_, Infallible>(Response::new(axum::body::Body::from_stream(never)))
        });
        let layer = DeadlineLayer { per_call: Duration::from_secs(3) };
        Client::new(layer.layer(silent), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_an_error_at_the_deadline() {
        let started = Instant::now();
        let answer = client_of_a_silent_server()
            .request_text(Request::get("/api/v1/pods").body(vec![]).unwrap())
            .await;
        assert!(answer.is_err());
        assert_eq!(started.elapsed().as_secs(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn headers_that_never_come_are_an_error_for_streams_too() {
        let hung =
            service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
        let client = Client::new(DeadlineLayer { per_call: Duration::from_secs(3) }.layer(hung), "default");
        for path in ["/api/v1/pods", "/api/v1/pods?watch=true", "/api/v1/namespaces/a/pods/b/log"] {
            let started = Instant::now();
            assert!(client.request_text(Request::get(path).body(vec![]).unwrap()).await.is_err());
            assert_eq!(started.elapsed().as_secs(), 3, "{path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_and_a_log_may_stay_open() {
        let waited = async |path: &str| {
            let request = Request::get(path).body(vec![]).unwrap();
            let client = client_of_a_silent_server();
            tokio::time::timeout(Duration::from_secs(3600), client.request_text(request)).await
        };
        let log = "/api/v1/namespaces/a/pods/b/log";
        for path in ["/api/v1/pods?limit=1&watch=true", log, &format!("/k8s/clusters/c{log}?follow=true")] {
            assert!(waited(path).await.is_err(), "{path} ended by itself");
        }
        for path in ["/api/v1/namespaces/a/pods/log", "/api/v1/namespaces/pods/pods/log"] {
            assert!(waited(path).await.is_ok(), "{path} has no deadline");
        }
    }
}
