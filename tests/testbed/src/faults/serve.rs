//! One endpoint of the proxy: connections in, rules applied, answers out.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::answer;
use super::error::FaultProxyError;
use super::request::{ApiRequest, Verb};
use super::rule::Fault;
use super::shared::Shared;

/// The longest request body that is read: more than etcd takes.
const MAX_BODY: usize = 8 << 20;

type Body = UnsyncBoxBody<Bytes, FaultProxyError>;

/// Serves one endpoint for ever; while its caller is cut off, nothing listens and no connection lives.
pub(super) async fn serve(
    shared: Arc<Shared>,
    caller: String,
    address: SocketAddr,
    first: TcpListener,
    tls: TlsAcceptor,
) {
    let mut listener = Some(first);
    loop {
        shared.until(|state| !state.is_cut_off(&caller)).await;
        let bound = match listener.take() {
            Some(listener) => Ok(listener),
            None => TcpListener::bind(address).await,
        };
        let Ok(bound) = bound else {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        // Dropped at the end of this round, and with it every connection.
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = bound.accept() => accepted,
                () = shared.until(|state| state.is_cut_off(&caller)) => break,
                Some(_) = connections.join_next() => continue,
            };
            let Ok((stream, _)) = accepted else { continue };
            connections.spawn(connection(shared.clone(), caller.clone(), stream, tls.clone()));
        }
    }
}

async fn connection(shared: Arc<Shared>, caller: String, stream: TcpStream, tls: TlsAcceptor) {
    // Connection errors are expected: tests kill clients in the middle of a request.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let Ok(secured) = tls.accept(stream).await else { return };
    let service = service_fn(move |request: Request<Incoming>| {
        let exchange = Exchange { shared: shared.clone(), caller: caller.clone() };
        exchange.run(request)
    });
    let served = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(secured), service).await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection of a caller ended");
    }
}

struct Exchange {
    shared: Arc<Shared>,
    caller: String,
}

impl Exchange {
    /// An error closes the connection (HTTP/1.1) or the stream (HTTP/2) without an answer.
    async fn run(self, request: Request<Incoming>) -> Result<Response<Body>, FaultProxyError> {
        let (mut head, body) = request.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await.map_err(FaultProxyError::body)?.to_bytes();
        let uri = head.uri.path_and_query().map_or("/", |both| both.as_str()).to_owned();
        let agent = text(&head.headers, header::USER_AGENT);
        let asked = ApiRequest::parse(&self.caller, &agent, &head.method, &uri, &body);
        // The audit log then tells replicas of one program apart.
        if let Ok(named) = HeaderValue::from_str(&format!("{agent} ({})", self.caller)) {
            head.headers.insert(header::USER_AGENT, named);
        }
        let number = self.shared.begin(&asked);
        let decision = self.shared.decide(&asked);
        if !decision.delay.is_zero() {
            tokio::time::sleep(decision.delay).await;
        }
        let answered = |answer: &Response<Body>| self.shared.answered(number, answer.status().as_u16());
        let forward = async |uri: &str| {
            let answer = self.shared.callers_upstream.ask(&head, uri, &body).await?;
            self.shared.set_upstream_status(number, answer.status().as_u16());
            Ok::<_, FaultProxyError>(answer)
        };
        let answer = match decision.fault {
            None | Some((_, Fault::HoldOpenWatches | Fault::Delay(_))) => {
                let answer = forward(&uri).await?;
                self.pass(&asked, answer)
            }
            Some((_, Fault::Answer { status, retry_after })) => {
                whole(answer::status(status, retry_after, &asked))
            }
            Some((_, Fault::LoseAnswer)) => {
                // Read to its end: then the write is surely done.
                drop(forward(&uri).await?.into_body().collect().await);
                return Err(FaultProxyError::Lost);
            }
            Some((_, Fault::GatewayTimeout)) => {
                drop(forward(&uri).await?.into_body().collect().await);
                whole(answer::status(504, None, &asked))
            }
            Some((rule, Fault::HoldRequest)) => {
                self.shared.hold(rule).await;
                let answer = forward(&uri).await?;
                self.pass(&asked, answer)
            }
            Some((rule, Fault::HoldAnswer)) => {
                let answer = forward(&uri).await?;
                self.shared.hold(rule).await;
                self.pass(&asked, answer)
            }
            Some((_, Fault::OlderReads { version })) => match answer::older_uri(&asked, &uri, version) {
                Some(older) => self.older(&asked, &mut head, &older).await?,
                None => self.pass(&asked, forward(&uri).await?),
            },
        };
        answered(&answer);
        Ok(answer)
    }

    /// Hands on the API server's answer as it comes.
    fn pass(&self, asked: &ApiRequest, answer: Response<Incoming>) -> Response<Body> {
        let (mut head, body) = answer.into_parts();
        for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH] {
            head.headers.remove(name);
        }
        if asked.verb != Verb::Watch {
            return Response::from_parts(head, body.map_err(FaultProxyError::from).boxed_unsync());
        }
        let (shared, watch, opened) = (self.shared.clone(), asked.clone(), Instant::now());
        let frames = stream::unfold((body, shared, watch), move |(mut body, shared, watch)| async move {
            // Its end is held back too, so it is asked for before it is known whether there is one.
            let frame = body.frame().await;
            shared.until(|state| !state.rules.holds(&watch, opened, Instant::now())).await;
            let frame = frame?;
            Some((frame.map_err(FaultProxyError::from), (body, shared, watch)))
        });
        Response::from_parts(head, StreamBody::new(frames).boxed_unsync())
    }

    /// Answers a read as of an older version. It is asked as administrator: whoever may read one object may not always list.
    async fn older(
        &self,
        asked: &ApiRequest,
        head: &mut http::request::Parts,
        uri: &str,
    ) -> Result<Response<Body>, FaultProxyError> {
        for name in [header::AUTHORIZATION, header::ACCEPT_ENCODING] {
            head.headers.remove(name);
        }
        head.headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        let answer = self.shared.admins_upstream.ask(head, uri, &Bytes::new()).await?;
        if asked.verb != Verb::Get || !answer.status().is_success() {
            return Ok(self.pass(asked, answer));
        }
        let list = answer.into_body().collect().await?.to_bytes();
        Ok(whole(answer::only_item(asked, &list)))
    }
}

fn whole(answer: Response<Bytes>) -> Response<Body> {
    let never = |error: Infallible| match error {};
    answer.map(|body| Full::new(body).map_err(never).boxed_unsync())
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}
